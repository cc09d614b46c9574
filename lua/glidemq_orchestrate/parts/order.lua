-- order: the nodes of a flow in an order that survives a restart of the server and a failover, <flow>:order. Functions
-- that go through all nodes in slices use positions in it; a SCAN cursor is not valid in another server process.
-- Entries of nodes that were removed from the table may remain.
L.order = {}

-- The entry of a node.
function L.order.entry(name, ref)
  return name .. '\n' .. ref
end

-- The name and the ref in an entry. Names of nodes contain no line break, names of queues may.
function L.order.split(entry)
  return entry:match('^([^\n]*)\n(.*)$')
end

-- Appends entries to a list, a thousand in a command.
function L.order.push(key, entries)
  for first = 1, #entries, 1000 do
    redis.call('RPUSH', key, unpack(entries, first, math.min(first + 999, #entries)))
  end
end

-- Appends nodes; of a node that comes in pieces only the last piece counts.
function L.order.add(key, nodes)
  local entries = {}
  for _, node in ipairs(nodes) do
    if node.row ~= '' then
      entries[#entries + 1] = L.order.entry(node.name, node.ref)
    end
  end
  L.order.push(key .. ':order', entries)
end

-- Writes the list of a flow that was staged by a version without it, in one step of any length, and returns its length;
-- else nil.
function L.order.ensure(key)
  if redis.call('EXISTS', key .. ':order') == 1 or redis.call('EXISTS', key .. ':nodes') == 0 then
    return nil
  end
  local start, rows = key:match('^(.*:){[^{}]*}:gmo:flow:'), redis.call('HGETALL', key .. ':nodes')
  for i = 1, #rows, 2 do
    local queue, job_id = L.stage.place(rows[i + 1])
    redis.call('RPUSH', key .. ':order', L.order.entry(rows[i], start .. '{' .. queue .. '}:' .. job_id))
  end
  return #rows / 2
end
