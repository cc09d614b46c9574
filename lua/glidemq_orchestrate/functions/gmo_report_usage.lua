-- gmo_report_usage: store the usage of a job, and count it in the bucket of its minute.
-- KEYS  1 job hash
-- ARGS  1 now_ms, proof (token '' = from outside: for any existing job), 7 usage JSON {model, provider, tokens,
--       totalTokens, costs, totalCost, costUnit, latencyMs, cached}, each optional   then pairs: field of the job hash, text
-- REPLY integer: 1; 0 when a Node client is writing the usage of this job now, and nothing was changed
-- ERROR GMO_STALE, GMO_JOB_NOT_FOUND, GMO_BAD_CALL. Nothing was changed.
-- EFFECTS replaces an earlier report of the job, in the bucket of that report too. Buckets expire after 30 days.
-- EVENT usage {data}
local MINUTE, KEPT_SECONDS = 60000, 2592000

local FIELDS = { 'usage:model', 'usage:provider', 'usage:tokens', 'usage:totalTokens', 'usage:costs', 'usage:totalCost',
  'usage:costUnit', 'usage:latencyMs', 'usage:cached', 'usage:bucketTs' }

local function object(text)
  local ok, value = pcall(cjson.decode, text or '')
  return ok and type(value) == 'table' and value or {}
end

-- The shortest text of a number, as in JavaScript.
local function text(value)
  local short = string.format('%.15g', value)
  return tonumber(short) == value and short or string.format('%.17g', value)
end

-- Adds to a field of a bucket.
local function add(bucket, field, value)
  if value ~= 0 then
    redis.call('HINCRBYFLOAT', bucket, field, text(value))
  end
end

-- Counts a report in its bucket; `sign` -1 undoes that.
local function count(bucket, usage, sign)
  redis.call('HINCRBY', bucket, 'jobCount', sign)
  add(bucket, 'totalTokens', sign * (tonumber(usage.totalTokens) or 0))
  add(bucket, 'totalCost', sign * (tonumber(usage.totalCost) or 0))
  if usage.model then
    add(bucket, 'models:' .. usage.model, sign)
  end
  for field, parts in pairs({ ['tokens:'] = usage.tokens, ['costs:'] = usage.costs }) do
    for category, value in pairs(parts) do
      add(bucket, field .. category, sign * (tonumber(value) or 0))
    end
  end
end

-- Removes an earlier report of the job from its bucket.
local function take_back(prefix, old)
  if not old[10] then
    return
  end
  local bucket = prefix .. 'usage:' .. old[10]
  if redis.call('EXISTS', bucket) == 1 then
    count(bucket, { model = old[1] or nil, tokens = object(old[3]), totalTokens = old[4], costs = object(old[5]),
      totalCost = old[6] }, -1)
  end
end

local function are_numbers(parts)
  if type(parts) ~= 'table' then
    return parts == nil
  end
  for category, value in pairs(parts) do
    if type(category) ~= 'string' or type(value) ~= 'number' then
      return false
    end
  end
  return true
end

local function is_usage(usage)
  return type(usage) == 'table' and are_numbers(usage.tokens) and are_numbers(usage.costs)
    and are_numbers({ total = usage.totalTokens, cost = usage.totalCost })
    and (usage.model == nil or type(usage.model) == 'string')
    and (usage.costUnit == nil or type(usage.costUnit) == 'string')
end

local function report_usage(keys, args)
  local now, job_id, ok, usage = tonumber(args[1]), args[2], pcall(cjson.decode, args[7])
  if not now or not ok or not is_usage(usage) or #args % 2 == 0 then
    return redis.error_reply('GMO_BAD_CALL gmo_report_usage: the arguments are not valid')
  end
  local refusal = L.lease.refusal(keys, args)
  if refusal then
    return refusal
  end
  if redis.call('EXISTS', keys[1] .. ':usage-lock') == 1 then
    return 0
  end
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  take_back(prefix, redis.call('HMGET', keys[1], unpack(FIELDS)))
  redis.call('HDEL', keys[1], unpack(FIELDS))
  local minute = L.numbers.text(now - now % MINUTE)
  redis.call('HSET', keys[1], 'usage:bucketTs', minute, unpack(args, 8))
  local bucket = prefix .. 'usage:' .. minute
  usage.tokens, usage.costs = usage.tokens or {}, usage.costs or {}
  count(bucket, usage, 1)
  if usage.costUnit then
    redis.call('HSET', bucket, 'costUnit', usage.costUnit)
  end
  redis.call('EXPIRE', bucket, KEPT_SECONDS)
  L.events.emit(prefix .. 'events', 'usage', job_id, 'data', args[7])
  return 1
end

redis.register_function('gmo_report_usage', report_usage)
