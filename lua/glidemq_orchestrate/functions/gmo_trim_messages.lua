-- gmo_trim_messages: keep the newest messages of a broadcast queue.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 how many entries are kept
-- REPLY integer: the remaining excess
-- EFFECTS at most 50 of the oldest messages leave the stream and are removed, even if not all subscriptions have
--       handled them; a run that has begun and a retry still end first, then the message is removed. Retries count too.
local PAGE = 50

local function trim(keys, args)
  local b = { prefix = L.hashes.prefix(keys[1], 'stream'), stream = keys[1], now = tonumber(args[1]) }
  local surplus = redis.call('XLEN', keys[1]) - tonumber(args[2])
  if surplus <= 0 then
    return 0
  end
  local dropped = 0
  for _, entry in ipairs(redis.call('XRANGE', keys[1], '-', '+', 'COUNT', math.min(surplus, PAGE))) do
    local job_id, is_retry = L.handling.read_entry(entry[2])
    if not job_id then
      redis.call('XDEL', keys[1], entry[1])
    elseif not is_retry then
      L.messages.drop(b, job_id, entry[1])
      dropped = dropped + 1
    end
  end
  return dropped > 0 and surplus - dropped or 0
end

redis.register_function { function_name = 'gmo_trim_messages', callback = trim, flags = { 'allow-oom' } }
