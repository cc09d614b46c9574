-- gmo_discard_flow: delete a slice of a flow that never started.
-- KEYS  1 flow hash
-- ARGS  1 now_ms (unused)   2 flow id   3 digest
-- REPLY integer: remaining nodes (0 = all removed, or there is no flow with this digest)
-- EFFECTS on a staged flow, or one that was cancelled while it was being staged: at most 50 jobs with their sets;
--   with the last one the record and the index entries. The caller frees the id.

-- Whether no node of the flow ever ran: it is being staged, or was cancelled during that.
local function never_started(key)
  local record = redis.call('HMGET', key, 'state', 'started_at')
  return record[1] == 'staging' or (record[1] == 'cancelled' and not record[2])
end

local function discard_flow(keys, args)
  if redis.call('HGET', keys[1], 'digest') ~= args[3] or not never_started(keys[1]) then
    return 0
  end
  return L.retain.discard(keys[1], L.record.home(keys[1], args[2]), args[2])
end

redis.register_function { function_name = 'gmo_discard_flow', callback = discard_flow, flags = { 'allow-oom' } }
