-- gmo_renew_messages: renew the leases of messages that a worker of a subscription runs.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 subscription  3 consumer   then for each (at most 500): stream entry id, job id
-- REPLY for each: 1 renewed, 0 renewed but the message was revoked, -1 lost
-- EFFECTS each held entry is idle since now; the heartbeat of the job is for Node workers
local MAX = 500

local function renew(h, entry_id, job_id)
  if L.broadcasts.holder(h.stream, h.group, entry_id) ~= h.consumer then
    return -1
  end
  L.handling.claim(h, entry_id)
  local key = h.prefix .. 'job:' .. job_id
  local v = redis.pcall('HMGET', key, 'state', 'revoked')
  if not v.err and v[1] then
    redis.call('HSET', key, 'lastActive', L.numbers.text(h.now))
  end
  return not v.err and v[2] == '1' and 0 or 1
end

local function renew_messages(keys, args)
  local h, kept = L.handling.of(keys, args), {}
  for at = 4, math.min(#args - 1, 2 + 2 * MAX), 2 do
    kept[#kept + 1] = renew(h, args[at], args[at + 1])
  end
  return kept
end

redis.register_function { function_name = 'gmo_renew_messages', callback = renew_messages, flags = { 'allow-oom' } }
