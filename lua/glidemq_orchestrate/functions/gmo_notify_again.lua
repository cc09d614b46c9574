-- gmo_notify_again: notify an open node of a page of its ended dependencies; after the last, release or end it.
-- KEYS  1 flow hash  2 job hash
-- ARGS  1 now_ms  2 flow id  3 job id  4.. refs of dependencies, at most 100; none = all are notified
-- REPLY 1, or 0 when one of them has not ended, or the node does not wait: then there is nothing more to do
-- EFFECTS those of the end of each dependency on this node. Idempotent.
local function notify_again(keys, args)
  local key, job_id, now = keys[1], args[3], tonumber(args[1])
  local flow = { home = L.record.home(key, args[2]), id = args[2], node = 'flow' }
  local prefix = keys[2]:sub(1, #keys[2] - #('job:' .. job_id))
  local ref = prefix .. job_id
  if redis.call('HGET', key, 'state') ~= 'running' or not L.blocked.is_at_rest(flow, key, now)
    or redis.call('HGET', keys[2], 'state') ~= 'waiting-children' then
    return 0
  end
  for i = 4, math.min(#args, 3 + L.blocked.PAGE) do
    if not L.blocked.notify(flow, key, ref, args[i], now) then
      return 0
    end
  end
  if #args == 3 then
    L.blocked.decide(flow, key, ref, now)
  end
  return 1
end

redis.register_function { function_name = 'gmo_notify_again', callback = notify_again, flags = { 'allow-oom' } }
