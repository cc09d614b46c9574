-- The index of the flows of a home queue, for listing them, and what is due to be swept. All in the home's slot:
--   <home>gmo:flows                   zset: flow id -> created_at
--   <home>gmo:flows:state:<state>     the same of the flows in that state
--   <home>gmo:flows:label:<key>=<value>   the same of the flows with that label, 16 labels a flow at most
--   <home>gmo:staging                 zset: id of a staged flow -> when its submitter was last heard of
--   <home>gmo:expiring                zset: id of an ended flow -> when its jobs are to be removed
-- The set of the queues that are a home, <prefix>:gmo:homes, is in another slot: clients write it.
L.index = {}

local MAX_LABELS, MAX_SCAN = 16, 1000

local function label_keys(home, labels)
  local keys = {}
  local ok, pairs_of = pcall(cjson.decode, labels or '{}')
  for key, value in pairs(ok and type(pairs_of) == 'table' and pairs_of or {}) do
    if #keys < MAX_LABELS then
      keys[#keys + 1] = home .. 'gmo:flows:label:' .. key .. '=' .. value
    end
  end
  return keys
end

-- A flow has a record now.
function L.index.added(home, flow_id, labels, now)
  redis.call('ZADD', home .. 'gmo:flows', now, flow_id)
  for _, key in ipairs(label_keys(home, labels)) do
    redis.call('ZADD', key, now, flow_id)
  end
  L.index.moved(home, flow_id, nil, 'staging', now)
end

-- A flow has changed its state; `old` may be nil. With its end the time of its jobs begins to run.
function L.index.moved(home, flow_id, old, new, now)
  local record = redis.call('HMGET', L.record.key(home, flow_id), 'created_at', 'retention', 'listed')
  for _, state in ipairs { old or new, record[3] or new } do
    redis.call('ZREM', home .. 'gmo:flows:state:' .. state, flow_id)
  end
  redis.call('ZADD', home .. 'gmo:flows:state:' .. new, record[1] or now, flow_id)
  redis.call('HSET', L.record.key(home, flow_id), 'listed', new)
  if new ~= 'staging' then
    redis.call('ZREM', home .. 'gmo:staging', flow_id)
  end
  if new ~= 'staging' and new ~= 'running' and record[2] then
    redis.call('ZADD', home .. 'gmo:expiring', now + L.numbers.int(record[2], 0), flow_id)
  else
    redis.call('ZREM', home .. 'gmo:expiring', flow_id)
  end
end

-- A flow leaves every list.
function L.index.removed(home, flow_id)
  local record = redis.call('HMGET', L.record.key(home, flow_id), 'listed', 'labels')
  for _, key in ipairs(label_keys(home, record[2] or nil)) do
    redis.call('ZREM', key, flow_id)
  end
  redis.call('ZREM', home .. 'gmo:flows:state:' .. (record[1] or 'staging'), flow_id)
  redis.call('ZREM', home .. 'gmo:staging', flow_id)
  redis.call('ZREM', home .. 'gmo:expiring', flow_id)
  redis.call('ZREM', home .. 'gmo:flows', flow_id)
end

-- Whether `a` comes before `b` byte by byte, as in a zset; `<` goes by the locale of the server.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    if a:byte(i) ~= b:byte(i) then
      return a:byte(i) < b:byte(i)
    end
  end
  return #a < #b
end

-- Calls visit(flow id) for the flows of `list` from newest to oldest, those of one time by their ids backwards,
-- after the position {time, id}, until it returns true, `since` is passed or the scan has become long. Returns the
-- position reached, or nil at the end.
local function each_newest(list, since, at, visit)
  local offset, seen = 0, 0
  while seen < MAX_SCAN do
    local page = redis.call('ZREVRANGEBYSCORE', list, at.time, since, 'WITHSCORES', 'LIMIT', offset, 100)
    for i = 1, #page, 2 do
      local is_new = page[i + 1] ~= at.time or at.id == '' or is_before(page[i], at.id)
      if is_new and visit(page[i]) then
        return { time = page[i + 1], id = page[i] }
      end
    end
    seen, offset = seen + #page / 2, offset + #page / 2
    if #page < 200 then
      return nil
    end
    if seen >= MAX_SCAN then
      return { time = page[#page], id = page[#page - 1] }
    end
  end
end

-- gmo_list_flows: a page of the flows whose home is this queue, newest first.
-- KEYS  1 <home>gmo:flows
-- ARGS  1 now_ms (unused)   2 filter JSON {state, label, since, time, id}, each optional: state, '<key>=<value>', the
--       oldest created_at, and the position after which to go on   3 page size, at most 100
-- REPLY {time and id to go on after, both '' at the end, then per flow: id, flat array of the record's fields}
-- EFFECTS none; looks at 1000 entries at most, so that a page may be short or empty before the end.
local function list_flows(keys, args)
  local all, filter, size = keys[1], cjson.decode(args[2]), math.min(tonumber(args[3]), 100)
  local states, list = filter.state and all .. ':state:' .. filter.state, all
  if filter.label then
    list = all .. ':label:' .. filter.label
  elseif states then
    list, states = states, nil
  end
  local reply, found = { '', '' }, 0
  local at = { time = filter.time or '+inf', id = filter.id or '' }
  local reached = each_newest(list, filter.since or '-inf', at, function(flow_id)
    if not states or redis.call('ZSCORE', states, flow_id) then
      local record = redis.pcall('HGETALL', L.record.key(all:sub(1, -#'gmo:flows' - 1), flow_id))
      if record.err then -- no hash: the reader tells it as broken
        record = { 'state', '' }
      end
      if #record > 0 then
        reply[#reply + 1], reply[#reply + 2] = flow_id, record
        found = found + 1
      end
    end
    return found == size
  end)
  if reached then
    reply[1], reply[2] = reached.time, reached.id
  end
  return reply
end

redis.register_function { function_name = 'gmo_list_flows', callback = list_flows, flags = { 'no-writes' } }
