-- copies: many jobs of a call differ in a few fields. To copy the hash of one and to change those takes half the time of
-- writing each field.
L.copies = {}
-- Longer values are copied in vain. A hash with a value over SHORT takes thrice the memory, and so do its copies.
local LONGEST, SHORT = 1024, 64

-- Copies the hash of a job to a new key, where values of the length `from` are replaced by others of the length `to`.
-- False if it was not copied: the caller writes all fields.
-- The user may lack the right to use COPY, which was not needed before.
function L.copies.of(from_key, to_key, from, to)
  return (from <= SHORT or from <= LONGEST and to > SHORT) and redis.pcall('COPY', from_key, to_key) == 1
end
