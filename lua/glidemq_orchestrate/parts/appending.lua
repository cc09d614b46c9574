-- appending: a node adds elements to arrays of its flow. Its outcome has the kind `elements` and the lines
--   d<result JSON>, then for each array: t<name of its node>, and for each element: a<item JSON>
-- Part of outcome.lua.
L.appending = {}
local MAX, EACH = 100000000, 2

-- The array of this name in the flow, if it takes elements; else nil, and why not.
local function find(flow, name, count)
  local row = redis.call('HGET', L.record.key(flow.home, flow.id) .. ':nodes', name)
  local is_json, node = pcall(cjson.decode, row or '')
  if not is_json or type(node) ~= 'table' then
    return nil, 'its flow has no node ' .. name
  end
  local prefix = flow.home:match('^(.*){[^{}]*}:$') .. '{' .. node[2] .. '}:'
  local a, state = L.arrays.read(prefix, node[3]), redis.call('HGET', prefix .. 'job:' .. node[3], 'state')
  if not a then
    return nil, 'node ' .. name .. ' is no array'
  elseif a.per == 0 then
    return nil, 'array ' .. name .. ' is over a range, and only one over a list can grow'
  elseif state ~= 'active' and state ~= 'waiting-children' then
    return nil, 'array ' .. name .. ' has ended'
  elseif a.size + count > MAX then
    return nil, 'array ' .. name .. ' would have more than ' .. L.numbers.text(MAX) .. ' elements'
  end
  return a
end

-- The result in the lines, and for each array its name and items.
local function read(all)
  local result, groups = 'null', {}
  for line in L.positions.lines(all) do
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == 't' then
      groups[#groups + 1] = { name = rest, items = {} }
    elseif kind == 'a' and groups[#groups] then
      local items = groups[#groups].items
      items[#items + 1] = rest
    elseif kind == 'd' and rest ~= '' then
      result = rest
    end
  end
  return result, groups
end

-- Adds the elements, and makes the outcome one of kind `done`; or if an array does not take them, nothing is added, and
-- the attempt has failed for good.
function L.appending.accept(x, o, job)
  local result, groups = read(o.text)
  for _, group in ipairs(groups) do
    local a, reason = nil, 'it is no node of a flow'
    if job.flow then a, reason = find(job.flow, group.name, #group.items) end
    if not a then
      o.kind, o.first, o.second, o.text = 'fail', 0, 0, 'it cannot add elements: ' .. reason
      return
    end
    group.array = a
  end
  for _, group in ipairs(groups) do
    local a = group.array
    L.slice_items.append(a, group.items)
    x.spent = x.spent + math.floor(#group.items / EACH)
    if redis.call('ZSCORE', a.prefix .. 'gmo:arrays', a.id) then L.arrays.place(a, x.now, false, x.fetches) end
  end
  o.kind, o.text = 'done', result
end
