-- gmo_settle_messages: end the messages of a page of the stream that all subscriptions have ended, as after one of them
-- was removed, or Node workers have ended them.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 first entry id ('-' = the oldest)  3 how many entries (at most 100)
-- REPLY the entry id to continue after, '' at the end
-- EFFECTS see parts/broadcasts.lua; retries of subscriptions that were removed leave the stream. Repeatable.
local MOST = 100

local function settle_messages(keys, args)
  local b = { prefix = L.hashes.prefix(keys[1], 'stream'), stream = keys[1], now = tonumber(args[1]) }
  local count = math.min(tonumber(args[3]), MOST)
  local page = redis.call('XRANGE', keys[1], args[2], '+', 'COUNT', count)
  for _, entry in ipairs(page) do
    local job_id, is_retry, subscription = L.handling.read_entry(entry[2])
    if is_retry then
      L.broadcasts.drop_orphan(b, entry[1], subscription)
    elseif job_id then
      L.broadcasts.settle(b, job_id, entry[1])
    end
  end
  return #page == count and page[count][1] or ''
end

redis.register_function { function_name = 'gmo_settle_messages', callback = settle_messages, flags = { 'allow-oom' } }
