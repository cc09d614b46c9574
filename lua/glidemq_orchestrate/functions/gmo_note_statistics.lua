-- gmo_note_statistics: add what a worker has counted to the statistics of a queue and day, or hour.
-- KEYS  1 <prefix>qx:statistics:<day since the epoch>, or <prefix>qx:recent:<hour since the epoch>, where the handlers
--       are the numbers of ten minutes
-- ARGS  1 time to live in s  2 max handlers  3 JSON {handler: [waiting, running, failures, retries]}, where waiting and
--       running are [count, mean, sum of squared deviations, {bucket: count}], in ms
-- REPLY 1
-- EFFECTS the hash has fields `<kind>:<what>:<handler>`, kind w (waiting), r (running) or c (counts): `w:count:load`,
--       `w:mean:load`, `w:squares:load`, `w:s12:load`, `c:failures:load`. Handlers beyond the maximum are counted under
--       ''. A repeat adds again.
local COUNT, MEAN, SQUARES, BUCKETS = 1, 2, 3, 4

local function text(value)
  return string.format('%.17g', value)
end

-- The handler, or '' when the day has statistics of enough others.
local function row_of(key, handler, max)
  if handler == '' or redis.call('HEXISTS', key, 'c:known:' .. handler) == 1 then
    return handler
  elseif L.numbers.int(redis.call('HGET', key, 'handlers'), 0) >= max then
    return ''
  end
  redis.call('HINCRBY', key, 'handlers', 1)
  redis.call('HSET', key, 'c:known:' .. handler, 1)
  return handler
end

-- Merges durations: Chan, Golub, LeVeque 1979.
local function merge(key, kind, handler, new)
  if new[COUNT] < 1 then
    return
  end
  local function field(what)
    return kind .. ':' .. what .. ':' .. handler
  end
  local old = redis.call('HMGET', key, field('count'), field('mean'), field('squares'))
  local count, mean, squares = L.numbers.int(old[1], 0), L.numbers.int(old[2], 0), L.numbers.int(old[3], 0)
  local total, distance = count + new[COUNT], new[MEAN] - mean
  redis.call('HSET', key, field('count'), L.numbers.fresh_text(total),
    field('mean'), text(mean + distance * new[COUNT] / total),
    field('squares'), text(squares + new[SQUARES] + distance * distance * count * new[COUNT] / total))
  for bucket, number in pairs(new[BUCKETS]) do
    L.hashes.add(key, field(bucket), number)
  end
end

local function note_statistics(keys, args)
  local key, ttl, max, is_fine, report = keys[1], tonumber(args[1]), tonumber(args[2]), pcall(cjson.decode, args[3])
  if not ttl or not max or not is_fine or type(report) ~= 'table' then
    return redis.error_reply('GMO_BAD_CALL gmo_note_statistics got no report')
  end
  local is_new = redis.call('EXISTS', key) == 0
  for handler, counted in pairs(report) do
    local row = row_of(key, handler, max)
    merge(key, 'w', row, counted[1])
    merge(key, 'r', row, counted[2])
    for at, what in ipairs({ 'failures', 'retries' }) do
      if counted[at + 2] > 0 then
        L.hashes.add(key, 'c:' .. what .. ':' .. row, counted[at + 2])
      end
    end
  end
  if is_new then
    redis.call('EXPIRE', key, ttl)
  end
  return 1
end

redis.register_function {
  function_name = 'gmo_note_statistics', callback = note_statistics, flags = { 'allow-oom' },
}
