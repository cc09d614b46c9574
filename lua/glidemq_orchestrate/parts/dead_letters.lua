-- dead_letters: jobs that have failed for good and have no dead letter yet. The call that fails a job notes it, so that whoever
-- dies next loses nothing; the letter is written by a client, for its queue may be in another slot.
--   <prefix>gmo:letters   hash: job id -> "<when it failed>\n<JSON [name, data, reason, attempts], or ''>", while the meta
--                         field deadLetterQueueName says where letters go. The JSON is for when the job is gone by then:
--                         removed as it fails, or by the retention of others; '' where it is large and stays.
-- Not noted: nodes that end because of others, cancelled ones, and revocations that no attempt has met.
L.dead_letters = {}
local SUSPENDED, LARGE = 100, 65536
local function is_wanted(prefix)
  return redis.call('HGET', prefix .. 'meta', 'deadLetterQueueName')
end

-- Where the key holds something else, the job fails without a letter: its end matters more.
local function write(prefix, job_id, now, copy)
  redis.pcall('HSET', prefix .. 'gmo:letters', job_id, L.numbers.text(now) .. '\n' .. (copy or ''))
end

-- What a letter needs of a job that may be removed as it fails; nil where no letter is wanted.
function L.dead_letters.copy(prefix, job_id, reason)
  if not is_wanted(prefix) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'attemptsMade')
  return cjson.encode({ v[1] or '', v[2] or 'null', reason, L.numbers.int(v[3], 0) + 1 })
end

-- A job has failed for good. `copy`: from before, where the job may be gone.
function L.dead_letters.note(prefix, job_id, now, copy, is_revoked)
  if copy then
    return write(prefix, job_id, now, copy)
  elseif is_revoked or not is_wanted(prefix) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'failedReason', 'attemptsMade')
  if #(v[2] or '') <= LARGE then
    copy = cjson.encode({ v[1] or '', v[2] or 'null', v[3] or '', L.numbers.int(v[4], 0) })
  end
  return write(prefix, job_id, now, copy)
end

-- Suspended jobs whose time is over are about to fail, in a function that notes nothing.
function L.dead_letters.note_suspended(prefix, now)
  if redis.call('EXISTS', prefix .. 'suspended') == 0 or not is_wanted(prefix) then
    return
  end
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'suspended', 0, now, 'LIMIT', 0, SUSPENDED)) do
    write(prefix, job_id, now, nil)
  end
end
