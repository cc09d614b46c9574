-- gmo_message_states: the state of a message in each subscription.
-- KEYS  1 job hash
-- ARGS  1 now_ms (unused)  2 job id
-- REPLY for each subscription: name, state (waiting, active, delayed, completed or failed), reason ('' unless it has
--       failed), failed attempts. A subscription that is newer than the message counts as having completed it.
-- ERROR GMO_JOB_NOT_FOUND
local function message_states(keys, args)
  local prefix, found = L.hashes.prefix(keys[1], 'job:' .. args[2]), {}
  if redis.call('HEXISTS', keys[1], 'state') == 0 then
    return L.lease.missing(keys[1], args[2])
  end
  local b = { prefix = prefix, stream = prefix .. 'stream' }
  for _, row in ipairs((L.broadcasts.states(b, args[2], L.messages.entry_of(b, args[2])))) do
    found[#found + 1] = row[1]
    found[#found + 1] = row[2]
    found[#found + 1] = row[3] or ''
    found[#found + 1] = redis.call('HGET', keys[1], 'gmo:tries:' .. row[1]) or '0'
  end
  return found
end

redis.register_function { function_name = 'gmo_message_states', callback = message_states, flags = { 'no-writes' } }
