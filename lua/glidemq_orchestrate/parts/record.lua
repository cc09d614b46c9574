-- The record of a flow and the names of its keys. Everything lives in the slot of the home queue:
--   <home>gmo:flow:<id>           hash: id name digest total home labels state completed failed reason
--                                 skipped ignored (failures that do not count) created_at started_at
--                                 finished_at retention and deadline (ms) fail_fast expired_at listed (the state in
--                                 the index) extensions (how many) request (its idempotency key) note (of the
--                                 submitter) runs (how often it has restarted after its end), and the marks cancel (the
--                                 state it ends in), retry (rerun.lua), grown (nodes have added nodes), superseded and
--                                 after (generations.lua)
--   <home>gmo:flow:<id>:nodes     hash: node name -> JSON [rank, queue, job id, job, dependency...]
--   <home>gmo:flow:<id>:open      set of refs: nodes that have not ended
--   <home>gmo:flow:<id>:ready     set of refs: nodes to be released
--   <home>gmo:flow:<id>:roots     list of "<ref>\n<job name>": the same, at the start of the flow, for ordinary nodes
--                                 without dependencies
--   <home>gmo:flow:<id>:failed    set of refs: nodes that a retry reruns: failed, or skipped because of others
--   <home>gmo:flow:<id>:again, :giving   sets: see rerun.lua
--   <home>gmo:flow:<id>:blocked   set of "<ref>\n<failed or skipped>\n<outcome>\n<cause>": nodes to be ended as failed
--                                 or skipped, because a dependency had this outcome, which started at node <cause>
--   <home>gmo:flow:<id>:order     list of "<node name>\n<ref>" of all nodes, as they joined: see order.lua
--   <home>gmo:flow:<id>:notifying hash: ref of a node with many dependents -> how far they are notified, see
--                                 dependents.lua; the outcome `again` makes them forget the node's end
--   <home>gmo:flow:<id>:growing   set: see grow.lua
--   <home>gmo:flow:<id>:carried   list: see generations.lua
--   <home>gmo:flow:<id>:owners    hash: see owners.lua
--   <home>gmo:todo                set of flow ids that need gmo_advance_flow
-- A ref is "<queue prefix><job id>", the form of glide-mq's dependency members.
L.record = {}

-- The prefix of the home queue, from the key of the flow.
function L.record.home(flow_key, flow_id)
  return flow_key:sub(1, #flow_key - #('gmo:flow:' .. flow_id))
end

-- The key of the flow's record.
function L.record.key(home, flow_id)
  return home .. 'gmo:flow:' .. flow_id
end

-- Splits a ref into queue prefix (with its colon) and job id; ids hold no colon.
function L.record.split(ref)
  return ref:match('^(.*:)([^:]+)$')
end

-- The flow that a job belongs to: {home, id, node, on_failure}, or nil for a job outside flows.
function L.record.of_job(prefix, job_id)
  local fields = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:flow', 'gmo:home', 'gmo:node', 'gmo:on_failure')
  if not fields[1] or not fields[2] then
    return nil
  end
  return { id = fields[1], home = fields[2], node = fields[3] or job_id, on_failure = fields[4] or nil }
end

-- The error reply for a flow without a record.
function L.record.not_found(flow_id)
  return redis.error_reply('GMO_FLOW_NOT_FOUND no flow ' .. L.generations.split(flow_id) .. ' in this queue')
end
