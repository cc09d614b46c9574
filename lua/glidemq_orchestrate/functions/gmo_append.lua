-- gmo_append: append to the log or to the output of a job. A log keeps its last KEPT lines; the field gmo:cut has the
-- number of removed lines.
-- KEYS  1 job hash   2 log (a list) or output (a stream) of the job; for a slice of an array, those of the array
-- ARGS  1 now_ms (unused), proof (token '' = from outside: for any existing job), 7 log or output
--       8.. a line, or field and text of each part of the output
-- REPLY string: '' for a line, the id of the entry of an output
-- ERROR GMO_STALE, GMO_JOB_NOT_FOUND, GMO_BAD_CALL. Nothing was changed.
-- EFFECTS not idempotent. A late call, after the job was removed, is refused: its text would appear in a later job with
--   the same id.
local KEPT, SLACK = 10000, 1000

local function append(keys, args)
  local refusal = L.lease.refusal(keys, args)
  if refusal then
    return refusal
  end
  if args[7] == 'log' and #args == 8 then
    local length = redis.call('RPUSH', keys[2], args[8])
    if length >= KEPT + SLACK then
      redis.call('LPOP', keys[2], length - KEPT)
      local prefix, job_id = keys[2]:match('^(.*:)log:([^:]+)$')
      redis.call('HINCRBY', prefix .. 'job:' .. job_id, 'gmo:cut', length - KEPT)
    end
    return ''
  elseif args[7] == 'output' and #args >= 9 and #args % 2 == 1 and #args < 2000 then
    return redis.call('XADD', keys[2], '*', unpack(args, 8))
  end
  return redis.error_reply('GMO_BAD_CALL gmo_append: the arguments are not valid')
end

redis.register_function('gmo_append', append)
