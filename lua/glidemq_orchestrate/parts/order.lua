-- order: the nodes of a flow in an order that a restart of the server and a failover keep, <flow>:order. What looks at
-- all nodes in slices goes by positions in it; where a SCAN had come to means nothing to another server process.
-- Entries whose node has gone from the table may remain; a restart of the flow drops them.
L.order = {}
function L.order.entry(name, ref)
  return name .. '\n' .. ref
end

-- Names of nodes hold no line break, names of queues may.
function L.order.split(entry)
  return entry:match('^([^\n]*)\n(.*)$')
end

-- Nodes join; of a node that comes in pieces only the last counts.
function L.order.add(key, nodes)
  local entries = {}
  for _, node in ipairs(nodes) do
    if node.row ~= '' then
      entries[#entries + 1] = L.order.entry(node.name, node.ref)
    end
  end
  for first = 1, #entries, 1000 do
    redis.call('RPUSH', key .. ':order', unpack(entries, first, math.min(first + 999, #entries)))
  end
end

-- A flow that was staged before there was this list gets it in one go, however long that takes; then its length is
-- returned, else nil.
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
