-- advance: does the work of a flow in slices: ends, resets or releases nodes. All open work is in the record, so
-- another caller can continue after a crash.
L.advance = {}
local SLICE, ROOTS, EDGES, BUDGET = 50, 100, 500, 250
local ENDED = { completed = true, failed = true }

-- Counts an open node whose job a Node worker has ended: that end stands. False for any other.
local function keep_end(ref, now)
  local prefix, job_id = L.record.split(ref)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'failedReason')
  local owner = ENDED[job[1]] and L.record.of_job(prefix, job_id)
  if not owner then
    return false
  elseif job[1] == 'completed' then
    L.settle.job_completed(owner, prefix, job_id, now)
  else
    L.settle.ended(owner, ref, 'failed', job[2] or '', now)
  end
  return true
end

-- Cancels the flow: ends a slice of its open nodes; a running node loses its lease with its state. Returns how many
-- remain.
local function abort_open(flow, key, now)
  local v = redis.call('HMGET', key, 'reason', 'stopped_at')
  local reason = 'cancelled: ' .. (v[1] or '')
  now = math.max(now, L.numbers.int(v[2], 0))
  for _, ref in ipairs(redis.call('SRANDMEMBER', key .. ':open', SLICE)) do
    local prefix, job_id = L.record.split(ref)
    if not keep_end(ref, now) then
      redis.call('HSET', prefix .. 'job:' .. job_id, 'revoked', '1')
      L.end_nodes.fail(flow, ref, reason, now)
    end
  end
  L.settle.end_if_done(flow, key, now) -- also for a flow about to restart, with no node open yet
  return redis.call('SCARD', key .. ':open')
end

-- Ends a slice of the blocked nodes and notifies their dependents. Returns how many remain.
local function end_blocked(home, flow_id, key, now)
  local edges = 0
  for _ = 1, SLICE do
    local item = edges < EDGES and redis.call('SPOP', key .. ':blocked')
    if not item then
      break
    end
    -- names of queues may contain a line break, names of nodes may not
    local ref, ends_as, outcome, cause = item:match('^(.+)\n(%a+)\n(%a+)\n([^\n]*)$')
    if redis.call('SISMEMBER', key .. ':open', ref) == 1 then
      local prefix, job_id = L.record.split(ref)
      local flow = L.record.of_job(prefix, job_id) or { home = home, id = flow_id, node = job_id }
      local is_skipped = ends_as == 'skipped'
      edges = edges + math.min(redis.call('SCARD', prefix .. 'parents:' .. job_id), SLICE)
      L.dependents.notify(flow, prefix, job_id, now,
        { outcome = ends_as, cause = is_skipped and flow.node or cause, on_failure = flow.on_failure })
      local finish = is_skipped and L.end_nodes.skip or L.end_nodes.fail
      finish(flow, ref, 'upstream ' .. outcome .. ': ' .. cause, now)
    end
  end
  return redis.call('SCARD', key .. ':blocked')
end

-- Releases a slice of the ready nodes. Returns how many remain. A rerun node may follow nodes whose end was reported to
-- nobody, since everything was cancelled.
local function release_ready(flow, key, now)
  local spent = 0
  for _, ref in ipairs(redis.call('SPOP', key .. ':ready', SLICE)) do
    if spent > BUDGET then
      redis.call('SADD', key .. ':ready', ref)
    else
      local may_run, v = L.rules.decide(key, ref)
      if may_run then
        L.release.node(flow, ref, now, v)
      else
        spent = spent + L.blocked.catch_up(flow, key, ref, now)
      end
    end
  end
  return redis.call('SCARD', key .. ':ready')
end

-- Releases a slice of the ordinary nodes without dependencies. Others become ready ones: those that were changed since
-- they were staged, or got dependencies from a Node client or a late piece. Returns how many remain.
local function release_roots(key)
  local roots = redis.call('LPOP', key .. ':roots', ROOTS) or {}
  local prefixes, ids, names, deps, ready = {}, {}, {}, {}, {}
  for i, root in ipairs(roots) do
    prefixes[i], ids[i], names[i] = root:match('^([^{]*{[^{}]*}:)([^\n]*)\n(.*)$')
    deps[i] = prefixes[i] .. 'deps:' .. ids[i]
  end
  local has_some = L.stage.any_exists(deps)
  for i, prefix in ipairs(prefixes) do
    if has_some or not L.release.root(prefix, ids[i], names[i]) then
      ready[#ready + 1] = prefix .. ids[i]
    end
  end
  L.stage.add_all(key .. ':ready', ready)
  return #roots > 0 and redis.call('LLEN', key .. ':roots') or 0
end

-- Does the first slice that is due: additions, the previous generation, a cancel, a retry, then all else. Returns how
-- much remains.
local function work(flow, key, now)
  local growing = L.join.continue(flow, key, now)
  if growing > 0 then
    return growing
  end
  local marks = redis.call('HMGET', key, 'after', 'cancel', 'retry')
  if marks[1] then
    return L.generations.follow(flow, key, marks[1], now)
  elseif marks[2] then
    return abort_open(flow, key, now)
  elseif marks[3] then
    return L.rerun.slice(flow, key, marks[3], now)
  end
  local unnotified = L.dependents.continue(flow, key, now)
  local unready = release_roots(key) + release_ready(flow, key, now)
  return unnotified + unready + end_blocked(flow.home, flow.id, key, now)
end

-- Does one slice of a running flow. Returns how many pieces of work remain.
function L.advance.slice(home, flow_id, now)
  local key = L.record.key(home, flow_id)
  if redis.call('HGET', key, 'state') ~= 'running' then
    return 0
  end
  local left = work({ home = home, id = flow_id, node = 'flow' }, key, now)
  if left == 0 then
    redis.call('SREM', home .. 'gmo:todo', flow_id)
  end
  return left
end
