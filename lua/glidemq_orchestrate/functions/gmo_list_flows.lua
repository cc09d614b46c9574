-- gmo_list_flows: return a page of the flows whose home is this queue, newest first.
-- KEYS  1 <home>gmo:flows
-- ARGS  1 now_ms (unused)   2 filter JSON {state, label, since, time, id}, each optional: state, '<key>=<value>', the
--       earliest created_at, and the position after which to continue   3 page size, at most 100
-- REPLY {time and id to continue after, both '' at the end, then per flow: id, flat array of the record's fields}
-- EFFECTS none; reads 1000 entries at most, so that a page may be short or empty before the end.

-- Whether `a` comes before `b` byte by byte, as in a zset; `<` depends on the locale of the server.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    if a:byte(i) ~= b:byte(i) then
      return a:byte(i) < b:byte(i)
    end
  end
  return #a < #b
end

-- Calls visit(flow id) for the flows of `list` from newest to oldest, those of one time in reverse order of their ids,
-- after the position {time, id}, until it returns true, `since` is passed or MAX_SCAN entries are read. Returns the
-- position reached, or nil at the end.
local function each_newest(list, since, at, visit)
  local offset, seen = 0, 0
  while seen < L.index.MAX_SCAN do
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
    if seen >= L.index.MAX_SCAN then
      return { time = page[#page], id = page[#page - 1] }
    end
  end
end

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
      if record.err then -- not a hash: the client reports it as broken
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
