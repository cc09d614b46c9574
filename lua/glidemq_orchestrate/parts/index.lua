-- The index of the flows of a home queue, for lists and for the sweep. All in the home's slot:
--   <home>gmo:flows                   zset: flow id -> created_at
--   <home>gmo:flows:state:<state>     the same for the flows in that state
--   <home>gmo:flows:label:<key>=<value>   the same for the flows with that label, 32 labels a flow at most
--   <home>gmo:staging                 zset: id of a staged flow -> when its submitter last sent a chunk
--   <home>gmo:expiring                zset: id of an ended flow -> when to remove its jobs; then, when its tombstone
--                                     ends
-- The set of home queues, <prefix>:gmo:homes, is in another slot: clients write it.
L.index = {}
local MAX_LABELS, MAX_SCAN = 32, 1000

-- The keys of the lists by label that a flow is in.
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

-- Adds a new flow to the lists.
function L.index.added(home, flow_id, labels, now)
  redis.call('ZADD', home .. 'gmo:flows', now, flow_id)
  for _, key in ipairs(label_keys(home, labels)) do
    redis.call('ZADD', key, now, flow_id)
  end
  L.index.moved(home, flow_id, nil, 'staging', now)
end

-- Moves a flow to the list of its new state; `old` may be nil. Its retention starts when it ends.
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

-- Removes a flow from every list.
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

L.index.MAX_SCAN = MAX_SCAN
