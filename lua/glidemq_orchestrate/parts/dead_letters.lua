-- dead_letters: jobs that have failed for good and have no dead letter yet. The call that fails a job notes it, so that
-- no letter is lost if a client crashes; a client writes the letter, as its queue may be in another slot.
--   <prefix>gmo:letters   hash: job id -> "<when it failed>\n<JSON [name, data, reason, attempts], or ''>", if the meta
--                         field deadLetterQueueName is set. The JSON is for a job that may be removed first: as it
--                         fails, or by the retention of others; '' for a large job that stays. For a message of a
--                         broadcast the field is "<job id>||<subscription>".
-- Not noted: nodes that end because of others, cancelled nodes, elements of arrays, and jobs revoked before an attempt.
L.dead_letters = {}
local LARGE = 65536

-- Whether a job, or message if nil, gets a letter.
local function is_wanted(prefix, job_id)
  local queue = redis.call('HGET', prefix .. 'meta', 'deadLetterQueueName')
  return queue and not (job_id and L.element_jobs.array_of(prefix, job_id))
end

-- Writes a note. If the key has another type, the job fails without a letter: its end matters more.
local function write(prefix, job_id, now, copy)
  redis.pcall('HSET', prefix .. 'gmo:letters', job_id, L.numbers.text(now) .. '\n' .. (copy or ''))
end

-- The data for the letter of a job that may be removed as it fails; nil when no letter is needed.
function L.dead_letters.copy(prefix, job_id, reason)
  if not is_wanted(prefix, job_id) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'attemptsMade')
  return cjson.encode({ v[1] or '', v[2] or 'null', reason, L.numbers.int(v[3], 0) + 1 })
end

-- Notes a job that has failed for good. `copy`: made before the job may have been removed.
function L.dead_letters.note(prefix, job_id, now, copy, is_revoked)
  if copy then
    return write(prefix, job_id, now, copy)
  elseif is_revoked or not is_wanted(prefix, job_id) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'failedReason', 'attemptsMade')
  if #(v[2] or '') <= LARGE then
    copy = cjson.encode({ v[1] or '', v[2] or 'null', v[3] or '', L.numbers.int(v[4], 0) })
  end
  return write(prefix, job_id, now, copy)
end

-- Notes a message that has failed for good in one subscription, as `<job id>||<subscription>`: others may continue with
-- it, and each has its own letter. parts: name, data, reason, failed attempts.
function L.dead_letters.note_message(prefix, job_id, group, now, parts)
  if is_wanted(prefix) then
    write(prefix, job_id .. '||' .. group, now, cjson.encode(parts))
  end
end
