-- rerun: reruns nodes of a flow, or gives them an outcome without a run. The work is in sets, and done in slices;
-- nothing is released before all of it is done. The mark `retry` of the record is `failed` (a retry) or `again`.
--   <flow>:failed   set of refs: they rerun alone, that is: those that follow keep their results
--   <flow>:again    set of "<how>\n<ref>"; how: `alone` (followers without a running handler wait again); `follow` (all
--                   followers rerun too, unless they still wait); `give` (the same, without the node itself); `late`
--                   (like `follow`, but skipped ones stay: the end by a Node worker was reported to nobody)
--   <flow>:passed   set of refs: nodes whose followers also got `follow`: once each, even from nodes that still wait, as
--                   a follower may have ended before them
--   <flow>:giving   set of refs: nodes that end with the outcome in their field gmo:given, "<outcome>\n<result or
--                   reason>", once all dependents have forgotten their previous end
--   <flow>:staying  set of refs: nodes that already have the requested end; they get it again if they follow another
L.rerun = {}
local SLICE, BUDGET, REMEMBERED = 50, 250, 10
local ENDS = { completed = 'complete', skipped = 'skip_for_good', failed = 'fail' }

-- Records in the job of a node which request has changed it; keeps the last ten.
function L.rerun.remember(job_key, request)
  local found = {}
  for one in (redis.call('HGET', job_key, 'gmo:requests') or ''):gmatch('[^,]+') do
    found[#found + 1] = one
  end
  found[#found + 1] = request
  redis.call('HSET', job_key, 'gmo:requests', table.concat(found, ',', math.max(#found - REMEMBERED + 1, 1)))
end

-- Makes a dependent forget the end of a node. how: `follow` or `late`, see above; '' is `alone`.
function L.rerun.forget(flow, key, ref, dependent, how)
  L.rules.forget(ref, dependent)
  local prefix, job_id = L.record.split(dependent)
  local job_key = prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', job_key, 'state', 'gmo:flow', 'gmo:waited', 'gmo:skipped', 'gmo:array') -- waited: for children
  local is_released = v[1] and (v[1] ~= 'waiting-children' or v[3]) and v[2] == flow.id
  if is_released and how ~= '' and not (how == 'late' and v[4]) then
    local stays = redis.call('SREM', key .. ':staying', dependent) == 1
    redis.call('SADD', key .. ':again', (stays and 'give\n' or 'follow\n') .. dependent)
    if v[5] then L.arrays.renew(prefix, job_id) end
  elseif is_released and how == '' and L.losses.is_idle(job_key, v[1]) then
    redis.call('SADD', key .. ':again', 'alone\n' .. dependent)
  elseif not is_released and how == 'follow' and v[1] and v[2] == flow.id then
    redis.call('SADD', key .. ':again', 'follow\n' .. dependent)
  end
end

-- Makes all dependents forget the end of a node. Returns the cost.
local function forget_all(flow, key, ref, how)
  local prefix, job_id = L.record.split(ref)
  local count, is_small = L.dependents.count(prefix, job_id)
  if not is_small then
    L.dependents.begin(key, ref, { outcome = 'again', cause = how })
    return SLICE
  end
  for _, dependent in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
    L.rerun.forget(flow, key, ref, dependent, how)
  end
  return 5 + count
end

-- Does one piece of work. Returns the cost.
local function step(flow, key, how, ref, now)
  local had_ended = L.reopen.node(flow, key, ref, now)
  if had_ended ~= nil or how == 'give' then
    redis.call('SADD', key .. (how == 'give' and ':giving' or ':ready'), ref)
  end
  local is_first = how == 'follow' and redis.call('SADD', key .. ':passed', ref) == 1
  return (had_ended or is_first) and forget_all(flow, key, ref, how == 'alone' and '' or how == 'late' and how or 'follow') or 5
end

-- Ends a node with its assigned outcome. Returns the cost.
local function give(flow, ref, now)
  local prefix, job_id = L.record.split(ref)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:given', 'gmo:node', 'gmo:on_failure')
  redis.call('HDEL', prefix .. 'job:' .. job_id, 'gmo:given')
  local outcome, text = (v[1] or ''):match('^(%a+)\n(.*)$')
  local node = { home = flow.home, id = flow.id, node = v[2] or job_id, on_failure = v[3] or nil }
  L.dependents.notify(node, prefix, job_id, now,
    { outcome = outcome, cause = node.node, on_failure = node.on_failure, holds = true })
  L.end_nodes[ENDS[outcome]](node, ref, text, now)
  return SLICE
end

-- Whether nodes have not yet got their assigned ends.
function L.rerun.is_giving(key)
  return redis.call('EXISTS', key .. ':giving') == 1
end

-- Ends nodes with their assigned outcomes; returns how many remain.
local function give_some(flow, key, spent, now)
  while spent < BUDGET do
    local ref = redis.call('SPOP', key .. ':giving')
    if not ref then
      return 0
    end
    spent = spent + give(flow, ref, now)
  end
  return redis.call('SCARD', key .. ':giving')
end

-- Forgets a slice of the nodes that had the requested end and follow no changed node; returns how many remain.
local function forget_staying(key)
  for _, ref in ipairs(redis.call('SPOP', key .. ':staying', SLICE)) do
    local prefix, job_id = L.record.split(ref)
    redis.call('HDEL', prefix .. 'job:' .. job_id, 'gmo:given')
  end
  return redis.call('SCARD', key .. ':staying')
end

-- The next piece of work: how and ref, or nil.
local function pop(key, mark)
  local item = redis.call('SPOP', key .. ':again')
  if item then
    return item:match('^(%a+)\n(.*)$')
  end
  local ref = mark ~= 'again' and redis.call('SPOP', key .. ':failed')
  if ref then
    return 'alone', ref
  end
end

-- Whether a node must still be reset.
function L.rerun.is_due(key, ref, mark)
  if mark ~= 'again' and redis.call('SISMEMBER', key .. ':failed', ref) == 1 then
    return true
  end
  local set = key .. ':again'
  local found = redis.call('SMISMEMBER', set, 'alone\n' .. ref, 'follow\n' .. ref, 'give\n' .. ref, 'late\n' .. ref)
  return found[1] + found[2] + found[3] + found[4] > 0
end

-- Does a slice of the rerun; returns how much remains.
function L.rerun.slice(flow, key, mark, now)
  local spent = 0
  while spent < BUDGET do
    local how, ref = pop(key, mark)
    if not how then
      break
    end
    spent = spent + step(flow, key, how, ref, now)
  end
  local left = redis.call('SCARD', key .. ':again') + (mark ~= 'again' and redis.call('SCARD', key .. ':failed') or 0)
  if left == 0 and spent < BUDGET then
    left = L.dependents.continue(flow, key, now) + redis.call('SCARD', key .. ':again')
  end
  if left == 0 and spent < BUDGET then
    left = give_some(flow, key, spent, now)
    left = left == 0 and forget_staying(key) or left
    if left == 0 then
      redis.call('HDEL', key, 'retry')
      redis.call('UNLINK', key .. ':passed')
      L.settle.end_if_done(flow, key, now) -- if nothing remains to run
    end
  end
  return math.max(left + redis.call('SCARD', key .. ':ready'), 1)
end
