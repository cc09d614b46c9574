-- gmo_note_published: record the output of an attempt, which counts once its result is accepted.
-- KEYS  1 job hash
-- ARGS  1 now_ms, proof, then the outputs, each a line of text (at most 100)
-- REPLY integer: the number of lines of this attempt
-- ERROR GMO_STALE
-- EFFECTS the field gmo:published of the job: the attempt and the lines. When the result is accepted they move to the
--       sorted set gmo:published of the queue (outcome.lua), which does not depend on the job. Idempotent: an existing
--       line is not added again.
local function note_published(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  local lines = L.published.of(redis.call('HGET', keys[1], 'gmo:published'), args[5], args[6])
  local known = {}
  for _, line in ipairs(lines) do
    known[line] = true
  end
  for i = 7, #args do
    if not known[args[i]] then
      known[args[i]], lines[#lines + 1] = true, args[i]
    end
  end
  redis.call('HSET', keys[1], 'gmo:published', L.lease.attempt(args[5], args[6]) .. '\n' .. table.concat(lines, '\n'))
  return #lines
end

redis.register_function { function_name = 'gmo_note_published', callback = note_published, flags = { 'allow-oom' } }
