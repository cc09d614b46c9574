#!lua name=benchmark_floor
-- The commands that the format needs for a job without options, and nothing else: what it has to read is not acted on,
-- and there are no repeats, no limits and no ends of flows.

local function stage(keys, args)
  local prefix, refs, rows, model = keys[1], {}, {}, nil
  for at = 1, #args, 4 do
    local id, data, row, key = args[at], args[at + 1], args[at + 2], prefix .. 'job:' .. args[at]
    if model then
      redis.call('COPY', model, key)
      redis.call('HSET', key, 'id', id, 'gmo:node', id, 'data', data, 'parentIds', '["end"]', 'parentQueues', '["bench"]')
    else
      redis.call('HSET', key, 'id', id, 'name', 'work', 'data', data, 'opts', '{}', 'timestamp', '1', 'attemptsMade', '0',
        'delay', '0', 'priority', '0', 'maxAttempts', '1', 'state', 'waiting-children', 'gmo:flow', 'f', 'gmo:home',
        prefix, 'gmo:node', id, 'parentIds', '["end"]', 'parentQueues', '["bench"]')
      model = key
    end
    redis.call('SADD', prefix .. 'parents:' .. id, args[at + 3])
    redis.call('XADD', prefix .. 'events', '*', 'event', 'added', 'jobId', id, 'name', 'work')
    refs[#refs + 1], rows[#rows + 1], rows[#rows + 2] = prefix .. id, id, row
  end
  redis.call('SADD', prefix .. 'gmo:flow:f:open', unpack(refs))
  redis.call('RPUSH', prefix .. 'gmo:flow:f:roots', unpack(refs))
  redis.call('HSET', prefix .. 'gmo:flow:f:nodes', unpack(rows))
end

local function release(keys)
  local prefix = keys[1]
  for _, ref in ipairs(redis.call('LPOP', prefix .. 'gmo:flow:f:roots', 100) or {}) do
    local id = ref:sub(#prefix + 1)
    local entry = redis.call('XADD', prefix .. 'stream', '*', 'jobId', id, 'name', 'work')
    redis.call('HSET', prefix .. 'job:' .. id, 'state', 'waiting', 'gmo:entry', entry)
  end
end

local function finish(prefix, now, args)
  local ended, entries = {}, {}
  for at = 4, #args, 3 do
    local id, result, key = args[at], args[at + 2], prefix .. 'job:' .. args[at]
    local v = redis.call('HMGET', key, 'state', 'gmo:token', 'processedOn', 'groupKey', 'orderingKey', 'parentId', 'gmo:flow',
      'gmo:home', 'gmo:node', 'gmo:grows', 'gmo:messages', 'gmo:published', 'gmo:repeats', 'gmo:history', 'gmo:slice')
    if v[1] == 'active' and v[2] == args[2] then
      redis.call('HSET', key, 'state', 'completed', 'returnvalue', result, 'finishedOn', now)
      redis.call('XADD', prefix .. 'events', '*', 'event', 'completed', 'jobId', id, 'returnvalue', result)
      entries[#entries + 1], ended[#ended + 1], ended[#ended + 2] = args[at + 1], now, id
    end
  end
  if #entries > 0 then
    redis.call('ZADD', prefix .. 'completed', unpack(ended))
    redis.call('XACK', prefix .. 'stream', 'workers', unpack(entries))
    redis.call('XDEL', prefix .. 'stream', unpack(entries))
    redis.call('HINCRBY', prefix .. 'metrics:completed', 'm:1:c', #entries)
  end
end

local function turn(keys, args)
  local prefix, now, token, rows = keys[1], args[1], args[2], {}
  finish(prefix, now, args)
  local stream = prefix .. 'stream'
  local reply = redis.call('XREADGROUP', 'GROUP', 'workers', 'w', 'COUNT', args[3], 'STREAMS', stream, '>')
  for i, entry in ipairs(reply and reply[1][2] or {}) do
    local id, key = entry[2][2], prefix .. 'job:' .. entry[2][2]
    redis.call('HLEN', key)
    local v = redis.call('HMGET', key, 'name', 'data', 'opts', 'attemptsMade', 'state', 'priority', 'id', 'timestamp',
      'delay', 'maxAttempts')
    redis.call('HSET', key, 'state', 'active', 'processedOn', now, 'lastActive', now, 'gmo:token', token, 'gmo:entry',
      entry[1], 'gmo:epoch', now)
    rows[i] = { id, entry[1], v[1], v[2], v[3], v[4] }
  end
  return rows
end

redis.register_function('floor_stage', stage)
redis.register_function('floor_release', release)
redis.register_function('floor_turn', turn)
