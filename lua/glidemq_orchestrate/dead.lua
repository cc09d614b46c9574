-- dead: jobs that have failed for good and have no dead letter yet. The call that fails a job notes it, so that whoever
-- dies next loses nothing; the letter is written by a client, for its queue may be in another slot.
--   <prefix>gmo:letters   hash: job id -> "<when it failed>\n<JSON [name, data, reason, attempts], or ''>", while the meta
--                         field deadLetterQueueName says where letters go. The JSON is for when the job is gone by then:
--                         removed as it fails, or by the retention of others; '' where it is large and stays.
-- Not noted: nodes that end because of others, cancelled ones, and revocations that no attempt has met.
L.dead = {}

local SUSPENDED, LARGE = 100, 65536

local function is_wanted(prefix)
  return redis.call('HGET', prefix .. 'meta', 'deadLetterQueueName')
end

-- Where the key holds something else, the job fails without a letter: its end matters more.
local function write(prefix, job_id, now, copy)
  redis.pcall('HSET', prefix .. 'gmo:letters', job_id, L.numbers.text(now) .. '\n' .. (copy or ''))
end

-- What a letter needs of a job that may be removed as it fails; nil where no letter is wanted.
function L.dead.copy(prefix, job_id, reason)
  if not is_wanted(prefix) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'attemptsMade')
  return cjson.encode({ v[1] or '', v[2] or 'null', reason, L.numbers.int(v[3], 0) + 1 })
end

-- A job has failed for good. `copy`: from before, where the job may be gone.
function L.dead.note(prefix, job_id, now, copy, is_revoked)
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
function L.dead.note_suspended(prefix, now)
  if redis.call('EXISTS', prefix .. 'suspended') == 0 or not is_wanted(prefix) then
    return
  end
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'suspended', 0, now, 'LIMIT', 0, SUSPENDED)) do
    write(prefix, job_id, now, nil)
  end
end

-- gmo_letter_written: a noted job has its dead letter, or needs none.
-- KEYS  1 <prefix>gmo:letters
-- ARGS  1 now_ms (unused)  2 job id  3 when it failed, as the note says
-- REPLY 1, or 0 when it has been noted anew since, or not at all: then nothing was changed
local function letter_written(keys, args)
  local found = redis.call('HGET', keys[1], args[2])
  if not found or found:match('^[^\n]*') ~= args[3] then
    return 0
  end
  return redis.call('HDEL', keys[1], args[2])
end

redis.register_function { function_name = 'gmo_letter_written', callback = letter_written, flags = { 'allow-oom' } }
