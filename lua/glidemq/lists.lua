-- glidemq_popLists: ready ids from the priority list, else from the LIFO list; never a mix.
-- KEYS  1 priority  2 lifo          ARGS  1 count
-- REPLY array of ids. The caller maintains the list-active counter.
--
-- glidemq_rpopAndReserve: pop from one list within the global concurrency.
-- KEYS  1 meta  2 stream  3 list-active  4 list          ARGS  1 group  2 count
-- REPLY array of ids, counted in list-active
--
-- glidemq_checkConcurrency: how many more jobs the global concurrency allows.
-- KEYS  1 meta  2 stream  3 list-active          ARGS  1 group
-- REPLY integer: -1 = no limit, 0 = none

-- The remaining global concurrency; nil without a limit. A missing stream or group counts as none pending.
local function remaining(meta_key, stream_key, active_key, group)
  local limit = L.numbers.int(redis.call('HGET', meta_key, 'globalConcurrency'), 0)
  if limit <= 0 then
    return nil
  end
  local reply = redis.pcall('XPENDING', stream_key, group)
  local pending = not reply.err and L.numbers.int(reply[1], 0) or 0
  return math.max(limit - pending - L.numbers.int(redis.call('GET', active_key), 0), 0)
end

local function pop(list_key, count)
  return count > 0 and redis.call('RPOP', list_key, count) or {}
end

local function pop_lists(keys, args)
  local count = L.numbers.int(args[1], 1)
  local ids = pop(keys[1], count)
  return #ids > 0 and ids or pop(keys[2], count)
end

local function rpop_and_reserve(keys, args)
  local count = L.numbers.int(args[2], 1)
  local free = remaining(keys[1], keys[2], keys[3], args[1])
  local ids = pop(keys[4], free and math.min(count, free) or count)
  if #ids > 0 then
    redis.call('INCRBY', keys[3], #ids)
  end
  return ids
end

local function check_concurrency(keys, args)
  return remaining(keys[1], keys[2], keys[3], args[1]) or -1
end

redis.register_function({ function_name = 'glidemq_popLists', callback = pop_lists, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'glidemq_rpopAndReserve', callback = rpop_and_reserve, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_checkConcurrency', callback = check_concurrency, flags = { 'allow-oom' },
})
