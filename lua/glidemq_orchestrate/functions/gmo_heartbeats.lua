-- gmo_heartbeats: renew the leases of many attempts of one queue.
-- KEYS  1 stream            ARGS  1 now_ms, then per attempt (at most 500): job id, token, processedOn
-- REPLY per attempt: 1 renewed, 0 renewed but the job was revoked and should stop, 2 renewed but a user takes the job
--       back soon, -1 lost
-- EFFECTS a job that a user takes back goes back when its time is over; see gmo_take_back.
local function heartbeats(keys, args)
  local prefix, kept = L.hashes.prefix(keys[1], 'stream'), {}
  local r = { prefix = prefix, group = 'workers', now = tonumber(args[1]) or 0 }
  for at = 2, math.min(#args, 1501) - 2, 3 do
    local key = prefix .. 'job:' .. args[at]
    local v = redis.call('HMGET', key, 'state', 'gmo:token', 'processedOn', 'revoked', 'gmo:until')
    local is_held = v[1] == 'active' and v[2] == args[at + 1] and v[3] == args[at + 2]
    local is_over = nil
    if is_held and v[5] then
      is_over = L.losses.is_over(r, args[at], v[2], v[5])
    end
    if is_held and not is_over then
      redis.call('HSET', key, 'lastActive', args[1])
      kept[#kept + 1] = v[4] == '1' and 0 or is_over == false and 2 or 1
    else
      kept[#kept + 1] = -1
    end
  end
  return kept
end

redis.register_function { function_name = 'gmo_heartbeats', callback = heartbeats, flags = { 'allow-oom' } }
