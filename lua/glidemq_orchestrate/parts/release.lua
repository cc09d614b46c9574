-- Releasing nodes: the only place that moves a node of a flow out of waiting-children.
L.release = {}

-- Makes a node ready whose options require more than a stream entry: priority, ordering, cost, time to live.
-- Returns false when it can never start.
local function place(prefix, job_id, name, now)
  local key, int = prefix .. 'job:' .. job_id, L.numbers.int
  local v = redis.call('HMGET', key, 'opts', 'priority', 'delay', 'groupKey')
  local o = L.options.decode(v[1])
  local job = { prefix = prefix, id = job_id, name = name, timestamp = now, priority = int(v[2], 0),
    delay = int(v[3], 0), lifo = o.lifo }
  local fields = { 'state', L.jobs.state(job) }
  local function add(field, value)
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if o.ordering_key ~= '' and not v[4] then
    local seq = L.group_setup.join(prefix, o.ordering_key, o, now)
    if not seq then
      return false
    end
    add('groupKey', o.ordering_key)
    add('orderingSeq', L.numbers.text(seq))
  end
  if o.cost > 0 then
    add('cost', L.numbers.text(o.cost))
  end
  if o.lifo then
    add('lifo', '1')
  end
  if o.ttl > 0 then
    add('expireAt', L.numbers.text(now + o.ttl))
  end
  if job.delay == 0 and job.priority == 0 and not job.lifo then
    add('gmo:entry', L.stream.append(prefix .. 'stream', job_id, name))
  else
    L.jobs.route(job)
  end
  redis.call('HSET', key, unpack(fields))
  return true
end

L.release.place = place

-- The job fields that `read` returns.
local FIELDS = { 'state', 'name', 'delay', 'gmo:rule', 'gmo:placed', 'gmo:queue_timeout', 'gmo:edge', 'gmo:array' }

-- The fields of a job for its release, and one or two more.
function L.release.read(job_key, field, another)
  FIELDS[9], FIELDS[10] = field, another
  return redis.call('HMGET', job_key, unpack(FIELDS))
end

-- Makes one node ready by its own options, and stores its stream entry so that a cancel can remove it. `v`: its fields
-- from `L.release.read`, if the caller has them.
function L.release.node(flow, ref, now, v)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  v = v or L.release.read(job_key, 'id')
  if v[1] ~= 'waiting-children' then
    return
  end
  local delay = L.numbers.int(v[3], 0)
  if v[4] then
    L.rules.unguard(prefix, job_id)
  end
  if v[6] then
    L.due.node(flow.home, ref, now + delay + L.numbers.int(v[6], 0))
  end
  if v[8] then
    L.arrays.open(prefix, job_id, delay, now)
  elseif v[5] then
    if not place(prefix, job_id, v[2] or '', now) then
      local reason = 'its cost exceeds the capacity of its token bucket'
      L.end_nodes.fail_and_notify(L.record.of_job(prefix, job_id), ref, reason, now)
      L.dead_letters.note(prefix, job_id, now)
    end
  elseif delay > 0 then
    redis.call('ZADD', prefix .. 'scheduled', now + delay, job_id)
    redis.call('HSET', job_key, 'state', 'delayed')
  else
    local entry = redis.call('XADD', prefix .. 'stream', '*', 'jobId', job_id, 'name', v[2] or '')
    redis.call('HSET', job_key, 'state', 'waiting', 'gmo:entry', entry)
  end
end

-- The same for an ordinary node without dependencies and with this job name, in fewer steps. False for one that was
-- changed since it was staged.
function L.release.root(prefix, job_id, name)
  local job_key = prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', job_key, 'state', 'delay', 'priority')
  if v[1] ~= 'waiting-children' or v[2] ~= '0' or v[3] ~= '0' then
    return false
  end
  redis.call('HSET', job_key, 'state', 'waiting', 'gmo:entry', L.stream.append(prefix .. 'stream', job_id, name))
  return true
end

-- Notifies a dependent of the end of the job `ref`, and releases it if it may run; if the notice `holds`, only after
-- all nodes have their assigned ends. Returns true when gmo_advance_flow must end it.
function L.release.notify(flow, key, ref, dependent, notice, now)
  local decision, v = L.rules.notify(key, ref, dependent, notice)
  if decision == 'run' and notice.holds then
    redis.call('SADD', key .. ':ready', dependent)
  elseif decision == 'run' then
    local prefix, job_id = L.record.split(dependent)
    L.release.node(flow, dependent, now, v)
    L.events.emit(prefix .. 'events', 'active', job_id)
  elseif decision == 'blocked' then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
  end
  return decision == 'blocked'
end
