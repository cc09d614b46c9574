-- gmo_tag_job: add tags to a job, or take them off.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 add | remove   then at most 32 tags
-- REPLY all tags of the job afterwards
-- ERROR GMO_JOB_NOT_FOUND; GMO_BAD_CALL; GMO_TOO_MANY_TAGS: the job would have more than 32. Nothing was changed.
-- EFFECTS a tag counts once for each job; one that the job does not have is not taken off. Idempotent.
local MAX_TAGS, FIRST = 32, 4

local function tag_job(keys, args)
  local since, job_id, what = args[1], args[2], args[3]
  if not tonumber(since) or (what ~= 'add' and what ~= 'remove') or #args - FIRST + 1 > MAX_TAGS then
    return redis.error_reply('GMO_BAD_CALL gmo_tag_job: the arguments are not valid')
  elseif redis.call('HEXISTS', keys[1], 'state') == 0 then
    return L.lease.missing(keys[1], job_id)
  end
  local prefix, tags = L.hashes.prefix(keys[1], 'job:' .. job_id), {}
  for i = FIRST, #args do
    tags[#tags + 1] = args[i]
  end
  if what == 'remove' then
    return L.tags.take_off(prefix, job_id, tags)
  end
  return L.tags.add(prefix, job_id, tags, since)
    or redis.error_reply('GMO_TOO_MANY_TAGS job ' .. job_id .. ' would have more than ' .. MAX_TAGS .. ' tags')
end

redis.register_function('gmo_tag_job', tag_job)
