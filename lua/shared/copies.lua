-- copies: many jobs of a call differ in a few fields. To copy the hash of one and to change those takes half the time of
-- writing each field.

local M = {}
L.copies = M

local MAX_DATA = 1024 -- larger data is copied in vain

-- Copies the hash of a job, whose data is `data`, to a new key. False if it was not copied: the caller writes all fields.
-- The user may lack the right to use COPY, which was not needed before.
function M.of(from_key, to_key, data)
  return #data <= MAX_DATA and redis.pcall('COPY', from_key, to_key) == 1
end
