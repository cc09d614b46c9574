-- options: the parts of a job's options that the server acts on.

local M = {}
L.options = M

local MIN_LOCK, MAX_LOCK = 1000, 86400000

local function object(value)
  return type(value) == 'table' and value or {}
end

local function number(value)
  return type(value) == 'number' and value or 0
end

local function milli(value)
  return math.floor(number(value) * 1000)
end

local function parse(text)
  local ok, value = pcall(cjson.decode, text or '')
  return ok and object(value) or {}
end

local function key_text(key)
  if type(key) == 'number' then
    return L.numbers.text(key)
  end
  return type(key) == 'string' and key or ''
end

-- Text that cannot be parsed counts as no options.
function M.decode(text)
  local opts = parse(text)
  local ordering = object(opts.ordering)
  local limit, bucket = object(ordering.rateLimit), object(ordering.tokenBucket)
  return {
    ordering_key = key_text(ordering.key),
    concurrency = number(ordering.concurrency),
    rate_max = number(limit.max),
    rate_duration = number(limit.duration),
    tb_capacity = milli(bucket.capacity),
    tb_refill_rate = milli(bucket.refillRate),
    cost = milli(opts.cost),
    ttl = number(opts.ttl),
    lifo = opts.lifo == true or opts.lifo == 1,
  }
end

-- The lock duration of a job in ms, or nil when it is unset or out of range.
function M.lock_duration(text)
  if not text or not string.find(text, '"lockDuration"', 1, true) then
    return nil
  end
  local value = number(parse(text).lockDuration)
  if value >= MIN_LOCK and value <= MAX_LOCK then
    return value
  end
  return nil
end
