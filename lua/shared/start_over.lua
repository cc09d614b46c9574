-- start_over: a failed job runs again from its first attempt, at the request of a user.

local M = {}
L.start_over = M

-- A failed job holds no slot. If its number is past, it returns: mark that it must take a slot. If not, its number is
-- used after all and must no longer be skipped.
local function rejoin_group(prefix, key, job)
  local seq = L.numbers.int(job.orderingSeq, 0)
  if not job.groupKey or seq <= 0 then
    return
  end
  local hash_key = prefix .. 'group:' .. job.groupKey
  local next_seq = L.numbers.int(redis.call('HGET', hash_key, 'nextSeq'), 0)
  if next_seq == 0 or seq < next_seq then -- 0: the group was removed, so its number is past too
    redis.call('HSET', key, 'groupSlot', '0')
  else
    redis.call('HDEL', hash_key, 'skip:' .. L.numbers.text(seq))
  end
end

-- A job that was revoked in a list stays there until it is popped. It must be removed before it may run again.
local function take_out_of_lists(prefix, job_id, job)
  if job.revoked then
    redis.call('LREM', prefix .. 'lifo', 0, job_id)
    redis.call('LREM', prefix .. 'priority', 0, job_id)
  end
end

-- Restarts the time to live, and clears revocation and stalls. The caller puts the job in its place.
function M.reset(prefix, job_id, job, now, state)
  local key, int = prefix .. 'job:' .. job_id, L.numbers.int
  L.history.start_over(key, now)
  redis.call('HSET', key, 'state', state, 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
  take_out_of_lists(prefix, job_id, job)
  redis.call('HDEL', key, 'revoked', 'stalledCount')
  local expire_at = int(job.expireAt, 0)
  if expire_at > 0 then
    redis.call('HSET', key, 'expireAt', L.numbers.text(now + expire_at - int(job.timestamp, expire_at)))
  end
  rejoin_group(prefix, key, job)
end
