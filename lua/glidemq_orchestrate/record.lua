-- The record of a flow and the names of its keys. Everything lives in the slot of the home queue:
--   <home>gmo:flow:<id>           hash: id name digest total home labels state completed failed reason
--                                 created_at started_at finished_at retention (ms) expired_at listed (the state it
--                                 is listed under), and the marks cancel and retry
--   <home>gmo:flow:<id>:nodes     hash: node name -> JSON [rank, queue, job id, job, dependency...]
--   <home>gmo:flow:<id>:open      set of refs: nodes that have not ended
--   <home>gmo:flow:<id>:ready     set of refs: nodes to be released
--   <home>gmo:flow:<id>:failed    set of refs: nodes that ended as failed
--   <home>gmo:flow:<id>:blocked   set of "<ref>\n<cause>": nodes to be failed because the node <cause> failed
--   <home>gmo:flow:<id>:telling   hash: ref of an ended node with many dependents -> "<scan cursor>\n<cause or nothing>"
--   <home>gmo:flow:<id>:growing   set: see grow.lua
--   <home>gmo:todo                set of flow ids that need gmo_advance_flow
-- A ref is "<queue prefix><job id>", the form of glide-mq's dependency members.
L.record = {}

function L.record.home(flow_key, flow_id)
  return flow_key:sub(1, #flow_key - #('gmo:flow:' .. flow_id))
end

function L.record.key(home, flow_id)
  return home .. 'gmo:flow:' .. flow_id
end

-- Splits a ref into queue prefix (with its colon) and job id; ids hold no colon.
function L.record.split(ref)
  return ref:match('^(.*:)([^:]+)$')
end

-- The flow that a job belongs to: {home, id, node}, or nil for a job outside flows.
function L.record.of_job(prefix, job_id)
  local fields = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:flow', 'gmo:home', 'gmo:node')
  if not fields[1] or not fields[2] then
    return nil
  end
  return { id = fields[1], home = fields[2], node = fields[3] or job_id }
end

function L.record.not_found(flow_id)
  return redis.error_reply('GMO_FLOW_NOT_FOUND no flow ' .. flow_id .. ' in this queue')
end
