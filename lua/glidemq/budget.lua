-- glidemq_checkBudget: the status of a budget.
-- KEYS  1 budget hash          REPLY ok | exceeded | no_budget
--
-- glidemq_recordUsageAndCheckBudget: add usage, then check whether a cap is exceeded. Reaching a cap is ok.
-- KEYS  1 budget hash
-- ARGS  1 tokens by category (JSON)  2 costs by category (JSON)  3 weighted total  4 total cost
--       5 token caps by category (JSON)  6 cost caps by category (JSON)
-- REPLY ok | exceeded | no_budget (nothing written)

local function parse(text)
  local ok, value = pcall(cjson.decode, text or '')
  return ok and type(value) == 'table' and value or {}
end

local function add(key, field, amount)
  if type(amount) == 'number' and amount > 0 then
    redis.call('HINCRBYFLOAT', key, field, L.numbers.text(amount))
  end
end

local function is_over(key, field, cap)
  return type(cap) == 'number' and cap > 0 and L.numbers.int(redis.call('HGET', key, field), 0) > cap
end

local function any_over(key, field, caps)
  for category, cap in pairs(caps) do
    if is_over(key, field .. ':' .. category, cap) then
      return true
    end
  end
  return false
end

local function check_budget(keys)
  if redis.call('EXISTS', keys[1]) == 0 then
    return 'no_budget'
  end
  return redis.call('HGET', keys[1], 'exceeded') == '1' and 'exceeded' or 'ok'
end

local function record_usage(keys, args)
  local key, int = keys[1], L.numbers.int
  if redis.call('EXISTS', key) == 0 then
    return 'no_budget'
  end
  add(key, 'usedTokens', int(args[3], 0))
  add(key, 'usedCost', int(args[4], 0))
  for category, amount in pairs(parse(args[1])) do
    add(key, 'usedTokens:' .. category, amount)
  end
  for category, amount in pairs(parse(args[2])) do
    add(key, 'usedCost:' .. category, amount)
  end
  local max = redis.call('HMGET', key, 'maxTotalTokens', 'maxTotalCost')
  local is_exceeded = is_over(key, 'usedTokens', int(max[1], 0)) or is_over(key, 'usedCost', int(max[2], 0))
    or any_over(key, 'usedTokens', parse(args[5])) or any_over(key, 'usedCost', parse(args[6]))
  if is_exceeded then
    redis.call('HSET', key, 'exceeded', '1')
    return 'exceeded'
  end
  return 'ok'
end

redis.register_function({
  function_name = 'glidemq_checkBudget', callback = check_budget, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_recordUsageAndCheckBudget', callback = record_usage, flags = { 'allow-oom' },
})
