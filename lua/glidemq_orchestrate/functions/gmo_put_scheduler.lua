-- gmo_put_scheduler: write or remove a scheduler that has not changed since the caller read it.
-- KEYS  1 lock  2 glide-mq's schedulers  3 our schedulers
-- ARGS  1 now_ms  2 name  3, 4 texts that the caller read in KEYS 2 and 3 ('' = none)  5, 6 texts to write ('' = remove)
-- REPLY put | locked | changed
local function put_scheduler(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then
    return 'locked'
  end
  local name = args[2]
  if L.scheduler.stored(keys[2], name) ~= args[3] or L.scheduler.stored(keys[3], name) ~= args[4] then
    return 'changed'
  end
  L.scheduler.write(keys[2], name, args[5])
  L.scheduler.write(keys[3], name, args[6])
  if args[5] == '' and args[6] == '' then
    redis.call('HDEL', L.hashes.prefix(keys[1], L.scheduler.LOCK) .. 'gmo:schedulers:last', name)
  end
  return 'put'
end

redis.register_function('gmo_put_scheduler', put_scheduler)
