-- gmo_cleanup: remove a slice of what a queue no longer needs and no other call removes.
-- KEYS  1 stream
-- ARGS  1 now_ms
-- REPLY integer: 1 when there is more to do now, else 0
-- EFFECTS removed are: deduplication ids after their window and the end of their job; ordering keys without waiting or
--   running jobs and with unused limits; minutes of metrics older than a day. Idempotent, by any client at any time.
--   See parts/cleanup.lua
local function cleanup(keys, args)
  return L.cleanup.slice(L.hashes.prefix(keys[1], 'stream'), tonumber(args[1])) and 1 or 0
end

redis.register_function { function_name = 'gmo_cleanup', callback = cleanup, flags = { 'allow-oom' } }
