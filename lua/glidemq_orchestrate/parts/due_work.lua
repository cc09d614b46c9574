-- due_work: processes due work of a queue: jobs whose delay, suspension, wait for a group or retention is over; in a
-- home also deadlines.
-- Both the fetching call and the upkeep do it, so that a worker that wakes for due work also releases it.
L.due_work = {}
local PROMOTED, GROUPS, RELEASED, EXPIRED, PASSING = 100, 20, 100, 20, 500
-- The keys that most queues do not have. The first HOLDERS hold due work; the first TIMED say when something is due.
local KEYS = { 'scheduled', 'ratelimited', 'suspended', 'gmo:due', 'gmo:leaving', 'gmo:awaiting', 'gmo:arrays',
  'gmo:schedulers:due', 'priority', 'lifo' }
local HOLDERS, TIMED = 6, 7

-- Whether a queue has any of the first `count` keys.
local function has_any(prefix, count)
  local keys = {}
  for i = 1, count do
    keys[i] = prefix .. KEYS[i]
  end
  return redis.call('EXISTS', unpack(keys)) > 0
end

-- Whether all ready jobs of a queue are in its stream, and it has no due work, schedules or arrays.
function L.due_work.is_plain(prefix)
  return not has_any(prefix, #KEYS)
end

local function seconds(ms)
  return L.numbers.text(L.numbers.int(ms, 0) / 1000) .. ' s'
end

-- Stops a flow that is still running at its deadline.
local function end_flow(home, flow_id, now)
  local key = L.record.key(home, flow_id)
  local record = redis.call('HMGET', key, 'state', 'deadline')
  if record[1] == 'running' then
    L.settle.stop(home, flow_id, 'failed', 'deadline: it has not ended within ' .. seconds(record[2] or 0), now)
    L.advance.slice(home, flow_id, now)
  end
end

local STARTED = { active = true, suspended = true, completed = true, failed = true, ['waiting-children'] = true }

-- Fails a node that no worker has started by its queue timeout.
local function end_node(ref, now)
  local prefix, job_id = L.record.split(ref)
  local key = prefix .. 'job:' .. job_id
  local job = redis.call('HMGET', key, 'state', 'attemptsMade', 'gmo:queue_timeout', 'gmo:unhandled', 'gmo:array')
  local flow, is_open_array = L.record.of_job(prefix, job_id), job[5] and job[1] == 'active'
  -- A worker without its handler holds it for a moment and hands it back.
  local has_begun, is_passing = L.due.has_begun(key), job[4] and job[1] == 'active' and L.numbers.int(job[2], 0) == 0
  if is_open_array and job[4] then
    has_begun, is_passing = L.held_elements.have_begun(prefix, job_id, now)
  elseif is_open_array then
    has_begun, is_passing = has_begun or L.element_jobs.have_begun(prefix, job_id), false
  end
  if is_passing then
    L.due.node(flow and flow.home or prefix, ref, now + PASSING)
  end
  if not flow or not job[3] or (STARTED[job[1]] and not is_open_array) or has_begun or is_passing then
    return
  end
  local queue = prefix:match('{(.*)}:$')
  queue = queue:match('^(.+)~%d+~%w%w%w%w$') or queue -- a shard is not what its users have named
  local reason = 'queue timeout: no worker of queue ' .. queue .. ' began it within ' .. seconds(job[3])
    .. (job[4] and ': ' .. job[4] or '')
  L.end_nodes.fail_and_notify(flow, ref, reason, now)
  L.dead_letters.note(prefix, job_id, now)
  L.advance.slice(flow.home, flow.id, now)
end

-- Enforces at most `most` deadlines of a home.
local function meet_deadlines(home, now, most)
  local members = redis.call('ZRANGEBYSCORE', home .. 'gmo:due', '-inf', now, 'LIMIT', 0, most)
  for _, member in ipairs(members) do
    local kind, name = member:match('^(%a+)\n(.*)$')
    redis.call('ZREM', home .. 'gmo:due', member)
    if kind == 'flow' then
      end_flow(home, name, now)
    elseif kind == 'node' then
      end_node(name, now)
    elseif kind == 'owner' or kind == 'silent' then
      L.owners.look(home, name, kind == 'silent', now)
    end
  end
  return #members
end

-- Does a slice of due work, with at most `deadlines` deadlines. Returns how much was due, and the ids of flows that
-- need gmo_advance_flow.
function L.due_work.slice(prefix, now, deadlines)
  local flows = {}
  if not has_any(prefix, HOLDERS) then
    return 0, flows
  end
  local function on_failed(job_id, reason)
    L.dead_letters.note(prefix, job_id, now)
    flows[#flows + 1] = L.settle.job_failed(prefix, job_id, reason or 'expired', now)
    L.keeping.of_failed(prefix, job_id, now)
  end
  local done = L.park.expire({ prefix = prefix, now = now }, EXPIRED, on_failed)
    + L.limited.release(prefix, now, GROUPS, RELEASED)
    + meet_deadlines(prefix, now, deadlines)
    + L.retention.expire(prefix, now, EXPIRED)
    + L.children.sweep(prefix, now)
    + L.scheduled.promote(prefix, now, PROMOTED, on_failed, L.scheduled.NEAREST) -- last: it may raise
  return done, flows
end

-- When something is due next: ms since the epoch (0 = at once), or -1. A slice of an array that can be leased already is
-- not due: who cannot lease it, as the queue is paused or the worker knows no arrays, must not ask again at once.
function L.due_work.next(prefix, now)
  if not has_any(prefix, TIMED) then
    return -1
  end
  local due = L.scheduled.next_due(prefix .. 'scheduled', prefix .. 'ratelimited', prefix)
  for _, name in ipairs({ 'suspended', 'gmo:due', 'gmo:leaving', 'gmo:awaiting', 'gmo:arrays' }) do
    local after = name == 'gmo:arrays' and '(' .. L.numbers.text(now) or '-inf'
    local first = redis.call('ZRANGEBYSCORE', prefix .. name, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    first = first and tonumber(first)
    if first and first < L.arrays.NEVER and (due < 0 or first < due) then
      due = math.max(math.floor(first), 0)
    end
  end
  return due
end
