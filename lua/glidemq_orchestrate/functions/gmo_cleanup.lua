-- gmo_cleanup: remove a slice of what a queue no longer needs and no other call removes.
-- KEYS  1 stream
-- ARGS  1 now_ms
-- REPLY integer: 1 when there is more to do now, else 0
-- EFFECTS removed are: deduplication ids after their window and the end of their job; ordering keys of which no job
--   waits or runs and whose limits are spent by nobody; minutes of metrics that are older than a day. Repeatable by any
--   client at any time. See parts/cleanup.lua
local function cleanup(keys, args)
  return L.cleanup.slice(L.hashes.prefix(keys[1], 'stream'), tonumber(args[1])) and 1 or 0
end

redis.register_function { function_name = 'gmo_cleanup', callback = cleanup, flags = { 'allow-oom' } }
