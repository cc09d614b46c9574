-- glidemq_tryLock: take a lock.
-- KEYS  1 lock          ARGS  1 token  2 ttl ms
-- REPLY 1, or 0 when it is held, by this token too
--
-- glidemq_unlock: release a lock.
-- KEYS  1 lock          ARGS  1 token
-- REPLY 1, or 0 when this token does not hold it
--
-- glidemq_renewLock: extend a lock.
-- KEYS  1 lock          ARGS  1 token  2 ttl ms
-- REPLY 1, or 0 when this token does not hold it

local DEFAULT_TTL = 1000

local function is_mine(key, token)
  return redis.call('GET', key) == token
end

local function try_lock(keys, args)
  local ttl = L.numbers.int(args[2], DEFAULT_TTL)
  return redis.call('SET', keys[1], args[1], 'PX', L.numbers.text(ttl), 'NX') and 1 or 0
end

local function unlock(keys, args)
  return is_mine(keys[1], args[1]) and redis.call('DEL', keys[1]) or 0
end

local function renew_lock(keys, args)
  local ttl = L.numbers.int(args[2], DEFAULT_TTL)
  return is_mine(keys[1], args[1]) and redis.call('PEXPIRE', keys[1], L.numbers.text(ttl)) or 0
end

redis.register_function({ function_name = 'glidemq_tryLock', callback = try_lock, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'glidemq_unlock', callback = unlock, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'glidemq_renewLock', callback = renew_lock, flags = { 'allow-oom' },
})
