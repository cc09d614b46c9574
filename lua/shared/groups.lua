-- groups: slots, sequence numbers and parked jobs of an ordering key.
-- `<prefix>group:<key>` holds the state, `<prefix>groupq:<key>` the parked jobs by sequence number and
-- `<prefix>ratelimited` the time of the next try. Two fields are ours: `limitedUntil` on the group (set by
-- the rateLimitGroup functions) and `groupSlot` = `0` on an ordered job that released its slot and may return.

local M = {}
L.groups = M

local MAX_SKIPS = 1000
local MAX_MOVES = 1000
local SPARE_POPS = 20

local HOLDS_SLOT = {
  delayed = true, prioritized = true, waiting = true, suspended = true,
  ['waiting-children'] = true, ['group-waiting'] = true,
}

function M.load(prefix, group_key)
  return L.hashes.load(prefix .. 'group:' .. group_key)
end

-- The first number from `seq` on that no skip marker covers; the markers stay.
function M.step_over(group, seq)
  while group['skip:' .. L.numbers.text(seq)] do
    seq = seq + 1
  end
  return seq
end

-- Moves `nextSeq` past skip markers, deletes these, and returns it; 0 when the group has none.
function M.advance(hash_key, group)
  local first = L.numbers.int(group.nextSeq, 0)
  if first <= 0 then
    return 0
  end
  local markers, seq = {}, first
  while #markers < MAX_SKIPS and group['skip:' .. L.numbers.text(seq)] do
    markers[#markers + 1] = 'skip:' .. L.numbers.text(seq)
    group[markers[#markers]] = nil
    seq = seq + 1
  end
  if seq ~= first then
    group.nextSeq = L.numbers.text(seq)
    redis.call('HDEL', hash_key, unpack(markers))
    redis.call('HSET', hash_key, 'nextSeq', group.nextSeq)
  end
  return seq
end

-- Score of a job in the group queue.
function M.park_score(job_id, job)
  local int = L.numbers.int
  local seq = int(job.orderingSeq, 0)
  return seq > 0 and seq or int(job_id, nil) or int(job.timestamp, 0)
end

-- True while rateLimitGroup or rateLimitGroupExternal has paused the group.
-- `now` 0 means unknown: then any pause counts, and promoteRateLimited ends it in time.
function M.is_limited(group, now)
  local limit = L.numbers.int(group.limitedUntil, 0)
  return limit > 0 and now < limit
end

-- Registers a group that waits for its `limitedUntil`; true when it does wait.
function M.defer_limited(prefix, group_key, group, now)
  if not M.is_limited(group, now) then
    return false
  end
  redis.call('ZADD', prefix .. 'ratelimited', L.numbers.int(group.limitedUntil, 0), group_key)
  return true
end

-- How many activations the fixed window still allows; nil without a limit.
-- Registers the group for the end of the window when it allows none.
local function window_room(prefix, group_key, group, now)
  local int = L.numbers.int
  local max, duration = int(group.rateMax, 0), int(group.rateDuration, 0)
  local start = int(group.rateWindowStart, 0)
  if now <= 0 or max <= 0 or duration <= 0 or now - start >= duration then
    return nil
  end
  local room = max - int(group.rateCount, 0)
  if room <= 0 then
    redis.call('ZADD', prefix .. 'ratelimited', start + duration, group_key)
    return 0
  end
  return room
end

-- Moves at most `count` parked jobs to the stream, in order, and returns how many it moved. The stored `nextSeq` is
-- moved past skip markers, unless these must stay; otherwise it only changes at activation, and a copy runs ahead here.
function M.move_parked(prefix, group_key, group, count, now, check_expiry, keeps_markers)
  local int = L.numbers.int
  local queue, next_seq, moved = prefix .. 'groupq:' .. group_key, int(group.nextSeq, 0), 0
  if not keeps_markers then
    next_seq = M.advance(prefix .. 'group:' .. group_key, group)
  elseif next_seq > 0 then
    next_seq = M.step_over(group, next_seq)
  end
  for _ = 1, count + SPARE_POPS do
    local job_id = moved < count and redis.call('ZPOPMIN', queue)[1]
    if not job_id then
      break
    end
    local job = L.jobs.read(prefix, job_id) or {}
    if job.state == 'group-waiting' then
      local seq = int(job.orderingSeq, 0)
      if not (check_expiry and L.expiry.check(prefix, job_id, now, job, group)) then
        if next_seq > 0 and seq > next_seq then
          redis.call('ZADD', queue, seq, job_id)
          break
        end
        L.stream.append(prefix .. 'stream', job_id, job.name)
        redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'waiting')
        moved = moved + 1
      end
      if next_seq > 0 and seq == next_seq then
        next_seq = M.step_over(group, seq + 1)
      end
    end
  end
  return moved
end

-- Moves parked jobs to the stream as far as slots, window and bucket allow. `now` 0 skips window and bucket.
function M.promote(prefix, group_key, group, now, keeps_markers)
  local parked = redis.call('ZCARD', prefix .. 'groupq:' .. group_key)
  if parked == 0 then
    return
  end
  local active, limit = L.numbers.int(group.active, 0), L.numbers.int(group.maxConcurrency, 0)
  if limit > 0 and active >= limit or M.defer_limited(prefix, group_key, group, now) then
    return
  end
  local room = window_room(prefix, group_key, group, now)
  if room == 0 or now > 0 and not L.bucket.admits_head(prefix, group_key, group, now, false) then
    return
  end
  local count = math.min(limit > 0 and limit - active or parked, room or MAX_MOVES, MAX_MOVES)
  M.move_parked(prefix, group_key, group, count, now, false, keeps_markers)
end

-- Skips a number that will never be activated. Returns true when this lets the group continue.
local function skip(hash_key, group, seq)
  if seq > L.numbers.int(group.nextSeq, 0) then
    local marker = 'skip:' .. L.numbers.text(seq)
    group[marker] = '1'
    redis.call('HSET', hash_key, marker, 1)
    return false
  end
  group.nextSeq = L.numbers.text(seq + 1)
  redis.call('HSET', hash_key, 'nextSeq', group.nextSeq)
  M.advance(hash_key, group)
  return true
end

-- The job ends, from the state in `job`: release its slot, or drop its number when it never ran. A job that had ended
-- before holds nothing.
-- Then promote parked jobs, unless the caller passes its own loaded `group` and promotes itself.
function M.leave(prefix, job, now, group)
  local group_key = job.groupKey
  if not group_key or group_key == '' or job.state == 'completed' or job.state == 'failed' then
    return
  end
  local hash_key, is_mine = prefix .. 'group:' .. group_key, not group
  group = group or M.load(prefix, group_key)
  local seq, next_seq = L.numbers.int(job.orderingSeq, 0), L.numbers.int(group.nextSeq, 0)
  local goes_on = job.state == 'active'
  if job.state ~= 'active' and next_seq > 0 and seq >= next_seq then
    goes_on = skip(hash_key, group, seq)
  elseif job.groupSlot ~= '0' and (job.state == 'active' or seq > 0 and HOLDS_SLOT[job.state]) then
    local active = L.numbers.int(group.active, 0)
    if active > 0 then
      group.active = L.numbers.text(active - 1)
      redis.call('HSET', hash_key, 'active', group.active)
    end
    goes_on = true
  end
  if is_mine and goes_on then
    M.promote(prefix, group_key, group, now)
  end
end
