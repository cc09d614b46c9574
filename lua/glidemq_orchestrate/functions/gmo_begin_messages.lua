-- gmo_begin_messages: begin messages that a worker of a subscription has read.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 subscription  3 consumer   then for each (at most 100): stream entry id, job id, 1 for a retry
-- REPLY a row for each message to run: entry id, job id, failed attempts, fields of the job as a flat array. A row has
--       only entry id, job id and a text when the job cannot be read. The others were acknowledged: the job was
--       removed; or was revoked or has expired, which counts as a failure in this subscription.
-- EFFECTS see parts/handling.lua. Idempotent while the worker holds the entries.
local MAX = 100

local function begin_messages(keys, args)
  local h, rows = L.handling.of(keys, args), {}
  for at = 4, math.min(#args - 2, 1 + 3 * MAX), 3 do
    local is_fine, fields, tries = pcall(L.handling.begin, h, args[at + 1], args[at], args[at + 2] == '1')
    if not is_fine then
      rows[#rows + 1] = { args[at], args[at + 1], type(fields) == 'table' and fields.err or tostring(fields) }
    elseif fields then
      rows[#rows + 1] = { args[at], args[at + 1], tries, fields }
    end
  end
  return rows
end

redis.register_function { function_name = 'gmo_begin_messages', callback = begin_messages, flags = { 'allow-oom' } }
