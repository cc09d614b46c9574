-- gmo_update_job: change one field of a job from outside.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 field: data, progress, tpmTokens, lastActive or gmo:unhandled  4 value
--       5 1 = a missing job is not an error
-- REPLY integer: 1, or 0 for a missing job, and nothing was changed
-- ERROR GMO_JOB_NOT_FOUND, GMO_BAD_CALL. Nothing was changed.
-- EVENT progress {data} for that field
local FIELDS = { data = true, progress = true, tpmTokens = true, lastActive = true, ['gmo:unhandled'] = true }

local function update_job(keys, args)
  local job_id, field, value = args[2], args[3], args[4]
  if not FIELDS[field] or not value then
    return redis.error_reply('GMO_BAD_CALL gmo_update_job: this field cannot be changed')
  elseif redis.call('HEXISTS', keys[1], 'state') == 0 then
    return args[5] == '1' and 0 or L.lease.missing(keys[1], job_id)
  end
  redis.call('HSET', keys[1], field, value)
  if field == 'progress' then
    local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
    L.events.emit(prefix .. 'events', 'progress', job_id, 'data', value)
  end
  return 1
end

redis.register_function('gmo_update_job', update_job)
