-- gmo_expire_due: do a slice of the work that is due in a queue.
-- KEYS  1 <home>gmo:due
-- ARGS  1 now_ms
-- REPLY {how many were due, time of the next ones or -1}: call again while the first is not 0
-- EFFECTS those of glidemq_promote, and expired nodes are settled; flows past their deadline are stopped and fail;
--   nodes that no worker has started in time fail; flows whose last owner has vanished are cancelled or kept, see
--   parts/owners.lua. Repeatable by any client at any time.
local SLICE, PROMOTED, PASSING = 20, 100, 500

local function seconds(ms)
  return L.numbers.text(L.numbers.int(ms, 0) / 1000) .. ' s'
end

-- Stops a flow that is still running at its deadline.
local function end_flow(home, flow_id, now)
  local key = L.record.key(home, flow_id)
  local record = redis.call('HMGET', key, 'state', 'deadline')
  if record[1] == 'running' then
    L.settle.stop(home, flow_id, 'failed', 'deadline: it has not ended within ' .. seconds(record[2] or 0))
    L.advance.slice(home, flow_id, now)
  end
end

local STARTED = { active = true, suspended = true, completed = true, failed = true, ['waiting-children'] = true }

-- Fails a node that no worker has started by its queue timeout.
local function end_node(ref, now)
  local prefix, job_id = L.record.split(ref)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'attemptsMade', 'gmo:queue_timeout',
    'gmo:unhandled')
  local flow = L.record.of_job(prefix, job_id)
  -- A worker without its handler holds it for a moment, and gives it back.
  local is_passing = job[4] and job[1] == 'active' and L.numbers.int(job[2], 0) == 0
  if is_passing then
    L.due.node(flow and flow.home or prefix, ref, now + PASSING)
  end
  local has_begun = L.due.has_begun(prefix .. 'job:' .. job_id)
  if not flow or not job[3] or STARTED[job[1]] or has_begun then
    return
  end
  local queue = prefix:match('{(.*)}:$')
  local reason = 'queue timeout: no worker of queue ' .. queue .. ' began it within ' .. seconds(job[3])
    .. (job[4] and ': ' .. job[4] or '')
  L.end_nodes.fail_and_notify(flow, ref, reason, now)
  L.dead_letters.note(prefix, job_id, now)
  L.advance.slice(flow.home, flow.id, now)
end

local function expire_due(keys, args)
  local now = tonumber(args[1])
  local home = L.hashes.prefix(keys[1], 'gmo:due')
  L.dead_letters.note_suspended(home, now)
  local promoted = L.scheduled.promote(home, now, PROMOTED, function(job_id)
    L.dead_letters.note(home, job_id, now)
    L.settle.job_failed(home, job_id, 'expired', now)
  end)
  local members = redis.call('ZRANGEBYSCORE', keys[1], '-inf', now, 'LIMIT', 0, SLICE)
  for _, member in ipairs(members) do
    local kind, name = member:match('^(%a+)\n(.*)$')
    redis.call('ZREM', keys[1], member)
    if kind == 'flow' then
      end_flow(home, name, now)
    elseif kind == 'node' then
      end_node(name, now)
    elseif kind == 'owner' or kind == 'silent' then
      L.owners.look(home, name, kind == 'silent', now)
    end
  end
  local next_one = redis.call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')
  return { #members + promoted, next_one[2] and tonumber(next_one[2]) or -1 }
end

redis.register_function { function_name = 'gmo_expire_due', callback = expire_due, flags = { 'allow-oom' } }
