-- gmo_settle_messages: end messages in a page of the stream that all subscriptions have ended, for example after one of
-- them was removed, or after Node workers ended them.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 first entry id ('-' = the oldest)  3 how many entries (at most 100)
--       4 a subscription that was removed ('' = none): its retries and notes are removed
-- REPLY the entry id to continue after, '' at the end
-- EFFECTS see parts/broadcasts.lua; retries of removed subscriptions leave the stream. Idempotent.
local MAX = 100

local function forget(b, job_id, subscription)
  local key = b.prefix .. 'job:' .. job_id
  redis.call('ZREM', b.prefix .. 'scheduled', job_id .. '||' .. subscription)
  redis.call('UNLINK', key .. ':sub:' .. subscription)
  redis.call('HDEL', key, 'gmo:sub:' .. subscription, 'gmo:tries:' .. subscription, 'gmo:stalls:' .. subscription,
    'gmo:suspect:' .. subscription)
end

local function settle(b, entry, removed)
  local job_id, is_retry, subscription = L.handling.read_entry(entry[2])
  if job_id and removed ~= '' then
    forget(b, job_id, removed)
  end
  if is_retry then
    L.messages.drop_orphan(b, entry[1], job_id, subscription)
  elseif job_id then
    L.broadcasts.settle(b, job_id, entry[1])
  end
end

local function settle_messages(keys, args)
  local b = { prefix = L.hashes.prefix(keys[1], 'stream'), stream = keys[1], now = tonumber(args[1]) }
  local count = math.min(tonumber(args[3]), MAX)
  local page = redis.call('XRANGE', keys[1], args[2], '+', 'COUNT', count)
  for _, entry in ipairs(page) do
    pcall(settle, b, entry, args[4] or '') -- an unreadable one does not block the others
  end
  return #page == count and page[count][1] or ''
end

redis.register_function { function_name = 'gmo_settle_messages', callback = settle_messages, flags = { 'allow-oom' } }
