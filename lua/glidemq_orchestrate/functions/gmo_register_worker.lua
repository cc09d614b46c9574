-- gmo_register_worker: register a worker of ours as alive, also while memory is full.
-- KEYS  1 registration of the worker  2 list of live workers; missing for those of a subscription, which run no jobs
-- ARGS  1 now_ms  2 worker id  3 ttl_ms  4 description, JSON
-- REPLY 1
-- EFFECTS the registration expires after the ttl; the list has the worker with the time of the expiry. A repeat renews
--   both.
local function register_worker(keys, args)
  redis.call('SET', keys[1], args[4], 'PX', args[3])
  if keys[2] then
    redis.call('ZADD', keys[2], L.numbers.text(tonumber(args[1]) + tonumber(args[3])), args[2])
  end
  return 1
end

redis.register_function { function_name = 'gmo_register_worker', callback = register_worker, flags = { 'allow-oom' } }
