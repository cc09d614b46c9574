-- gmo_change_nodes: rerun ended nodes of a flow, or end nodes without running them; with their followers.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 what: alone or follow (they rerun, alone or with all nodes that follow them), or
--       completed, skipped or failed (how they end)   4 token of the request   5 1 if the request is in one call, so
--       that a node in an unsuitable state is an error; else it is ignored   6.. name and text of each node: its result
--       as JSON, or the reason; to rerun it: failed = not if it has another end, '' = whatever its end
-- REPLY {state of the flow, or busy: it has open work for gmo_advance_flow, and nothing was changed; then the names of
--       the nodes that this request has changed, now or before}. Nodes that already have the requested end are not
--       changed: failed ones, skipped ones, those with the same result. If such a node follows a changed one, it does
--       not rerun either: it gets the same end again.
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED, GMO_FLOW_EXPIRED, GMO_FLOW_INCOMPLETE (not all of it exists),
--       GMO_FLOW_ENDED (it is being stopped), GMO_NODE_NOT_FOUND, GMO_NODE_NOT_ENDED (a node to rerun), GMO_NODE_KEEPS
--       (its job was removed by others, with its data, or it has added nodes). Nothing was changed.
-- EFFECTS the flow runs (again); for followers see parts/rerun.lua. A worker that runs such a node loses its lease.
-- EVENT flow.retried {flowId} on the events stream of the home queue if the flow had ended
local RERUNS = { alone = true, follow = true }

-- Whether a node that has ended has this end.
local function has_end(job_key, what, text, v)
  if what == 'failed' then
    return true
  elseif what == 'skipped' then
    return v[2] ~= false
  end
  return v[1] == 'completed' and not v[2] and redis.call('HGET', job_key, 'returnvalue') == text
end

-- Reads one node. Returns it if this request has changed it (`is_done`), must change it, or requests the end that it
-- has (`stays`); else nil, and possibly an error reply.
local function read(key, what, request, is_strict, name, text)
  local row = redis.call('HGET', key .. ':nodes', name)
  if not row then
    return nil, redis.error_reply('GMO_NODE_NOT_FOUND the flow has no node ' .. name)
  end
  local queue, job_id = L.stage.place(row)
  local prefix = key:match('^(.*:){[^{}]*}:gmo:flow:') .. '{' .. queue .. '}:'
  local job_key, ref = prefix .. 'job:' .. job_id, prefix .. job_id
  local v = redis.call('HMGET', job_key, 'state', 'gmo:skipped', 'gmo:requests', 'gmo:grows', 'gmo:removed',
    'gmo:gone')
  if (',' .. (v[3] or '') .. ','):find(',' .. request .. ',', 1, true) then
    return { name = name, is_done = true }
  end
  local node = { ref = ref, job_key = job_key, text = text, name = name }
  if redis.call('SISMEMBER', key .. ':open', ref) == 1 then
    if not RERUNS[what] then
      return node
    end
    return nil, is_strict and redis.error_reply('GMO_NODE_NOT_ENDED node ' .. name .. ' has not ended: it is ' .. (v[1] or 'missing')) or nil
  elseif RERUNS[what] and text == 'failed' and v[1] and v[1] ~= 'failed' then
    return nil
  elseif v[1] and not RERUNS[what] and has_end(job_key, what, text, v) then
    node.stays = true
    return node
  elseif what == 'failed' and not v[1] then
    return nil
  elseif RERUNS[what] and v[6] or not (v[1] or v[5]) then
    return nil, redis.error_reply('GMO_NODE_KEEPS the job of node ' .. name .. ' was removed, and its data with it: '
      .. "submit the specification with on_existing='retry_failed', or 'restart'")
  elseif v[1] == 'completed' and v[4] then
    return nil, redis.error_reply('GMO_NODE_KEEPS node ' .. name .. ' has added nodes and keeps its end: restart the flow')
  end
  return node
end

-- Notes the change of a node.
local function note(key, what, request, node)
  if not RERUNS[what] then
    redis.call('HSET', node.job_key, 'gmo:given', what .. '\n' .. node.text)
  end
  if node.stays then
    redis.call('SADD', key .. ':staying', node.ref)
    return
  end
  L.rerun.remember(node.job_key, request)
  redis.call('SADD', key .. ':again', (RERUNS[what] and what or 'give') .. '\n' .. node.ref)
end

local function change_nodes(keys, args)
  local key, what, request = keys[1], args[3], args[4]
  local refused = L.begin_again.refusal_of_change(key, args[2])
  if refused then
    return refused
  end
  local nodes, names = {}, {}
  for at = 6, #args, 2 do
    local node, problem = read(key, what, request, args[5] == '1', args[at], args[at + 1])
    if problem then
      return problem
    end
    nodes[#nodes + 1] = node
  end
  local is_new = false
  for _, node in ipairs(nodes) do
    names[#names + 1] = not node.stays and node.name or nil
    is_new = is_new or not (node.is_done or node.stays)
  end
  for _, node in ipairs(is_new and nodes or {}) do
    if not node.is_done then
      note(key, what, request, node)
    end
  end
  local state = is_new and L.begin_again.start(key, args[2], 'again', tonumber(args[1])) or redis.call('HGET', key, 'state')
  return { state, unpack(names) }
end

redis.register_function { function_name = 'gmo_change_nodes', callback = change_nodes, flags = { 'allow-oom' } }
