-- dead: jobs that have failed for good and have no dead letter yet. The call that fails a job notes it, so that whoever
-- dies next loses nothing; the letter is written by a client, for its queue may be in another slot.
--   <prefix>gmo:letters   hash: job id -> "<when it failed>\n<JSON [name, data, reason, attempts], or '' where the job
--                         stays>", while the meta field deadLetterQueueName says where letters go
-- Not noted: nodes that end because of others, cancelled ones, and revocations that no attempt has met.
L.dead = {}

local SUSPENDED = 100

local function is_wanted(prefix)
  return redis.call('HGET', prefix .. 'meta', 'deadLetterQueueName')
end

-- What a letter needs of a job that may be removed as it fails; nil where no letter is wanted.
function L.dead.copy(prefix, job_id, reason)
  if not is_wanted(prefix) then
    return nil
  end
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'name', 'data', 'attemptsMade')
  return cjson.encode({ v[1] or '', v[2] or 'null', reason, L.numbers.int(v[3], 0) + 1 })
end

function L.dead.note(prefix, job_id, now, copy)
  if copy or is_wanted(prefix) then
    redis.call('HSET', prefix .. 'gmo:letters', job_id, L.numbers.text(now) .. '\n' .. (copy or ''))
  end
end

-- Whether a job is noted that was only about to fail says its state.
function L.dead.note_suspended(prefix, now)
  if redis.call('EXISTS', prefix .. 'suspended') == 0 or not is_wanted(prefix) then
    return
  end
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'suspended', 0, now, 'LIMIT', 0, SUSPENDED)) do
    L.dead.note(prefix, job_id, now)
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
