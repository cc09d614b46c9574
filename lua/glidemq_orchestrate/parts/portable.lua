-- Jobs of nodes of the portable path. Each call names the round of the flow that it was decided in, and changes nothing
-- that a later round has let run again (job field gmo:round): a caller that was slow does no harm.
L.portable = {}

-- Whether a later round runs the job again.
local function is_later(job_key, round)
  return (tonumber(redis.call('HGET', job_key, 'gmo:round') or 0) or 0) > round
end

L.portable.is_later = is_later
