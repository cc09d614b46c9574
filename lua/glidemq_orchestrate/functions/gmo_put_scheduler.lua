-- gmo_put_scheduler: write, pause, resume or remove a scheduler that has not changed since the caller read it.
-- KEYS  1 lock  2 glide-mq's schedulers  3 our schedulers  4 finished schedulers  5 paused schedulers
-- ARGS  1 now_ms  2 name  3 to 6 texts that the caller read in KEYS 2 to 5 ('' = none)  7 to 10 texts to write
--       ('' = remove)  11 when to check the entry, ms
-- REPLY put | locked | changed
-- EVENT scheduler.changed {name}, if that is before the next check of the others
local HASHES, FINISHED, CHECK = 4, 3, 11

local function put_scheduler(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then
    return 'locked'
  end
  local name, check_at, is_left = args[2], tonumber(args[CHECK]), false
  if not check_at then
    return redis.error_reply('GMO_INVALID a time is expected')
  end
  for i = 1, HASHES do
    if L.scheduler.stored(keys[i + 1], name) ~= args[i + 2] then
      return 'changed'
    end
  end
  local prefix = L.hashes.prefix(keys[1], L.scheduler.LOCK)
  local first, is_planned = L.scheduler.next(prefix), false
  for i = 1, HASHES do
    local text = args[i + 2 + HASHES]
    if i == FINISHED then
      L.scheduler.write_finished(keys[i + 1], name, text, L.numbers.int(args[1], 0))
    else
      L.scheduler.write(keys[i + 1], name, text)
    end
    if i < FINISHED then
      L.scheduler.plan(prefix, L.scheduler.member(keys[i + 1], name), text ~= '' and args[CHECK] or nil)
      is_planned = is_planned or text ~= ''
    end
    is_left = is_left or text ~= ''
  end
  if not is_left then
    redis.call('HDEL', prefix .. 'gmo:schedulers:last', name)
  end
  if is_planned and (first < 0 or check_at < first) then
    redis.pcall('XADD', prefix .. 'events', 'MAXLEN', '~', 1000, '*', 'event', 'scheduler.changed', 'name', name)
  end
  return 'put'
end

redis.register_function('gmo_put_scheduler', put_scheduler)
