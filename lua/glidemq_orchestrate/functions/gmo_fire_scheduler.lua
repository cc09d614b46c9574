-- gmo_fire_scheduler: add the jobs of due slots and write the entry's next state.
-- KEYS  1 lock  2 the hash of schedulers that has the entry  3 finished schedulers
-- ARGS  1 now_ms  2 name  3 text that the caller read  4 text to write, with a + first if it has finished  5 name of
--       the jobs
--       6 opts  7 priority  8 attempts  9 ttl  10 lifo  11 scheduler name for the jobs ('' = none)  12 when to check
--       the entry again, ms  13 1 if its next run depends on the end of this one  14... data of each job (at most 100;
--       none = only write)
-- REPLY fired and the ids, locked, or changed
-- ERROR GMO_INVALID
-- EVENT added {name} for each job
local MAX_JOBS, FIXED = 100, 13

local function fire_scheduler(keys, args)
  local int, prefix = L.numbers.int, L.hashes.prefix(keys[1], L.scheduler.LOCK)
  local now = int(args[1], nil)
  if not now or #args < FIXED or #args - FIXED > MAX_JOBS or not tonumber(args[12]) then
    return redis.error_reply('GMO_INVALID a time and at most ' .. MAX_JOBS .. ' jobs are expected')
  end
  if redis.call('EXISTS', keys[1]) == 1 then
    return { 'locked' }
  end
  local name, member = args[2], L.scheduler.member(keys[2], args[2])
  if args[3] == '' or L.scheduler.stored(keys[2], name) ~= args[3] then
    return { 'changed' }
  end
  local reply, ttl = { 'fired' }, int(args[9], 0)
  for at = FIXED + 1, #args do
    local job = {
      prefix = prefix, id = L.ids.auto(prefix), name = args[5], data = args[at], opts = args[6], timestamp = now,
      delay = 0, priority = int(args[7], 0), max_attempts = int(args[8], 0), scheduler_name = args[11],
      lifo = int(args[10], 0) > 0, expire_at = ttl > 0 and now + ttl or nil,
    }
    L.jobs.write(job)
    -- The scheduler name is a field that Node workers act upon, so the jobs of most schedules do not have it.
    redis.call('HSET', prefix .. 'job:' .. job.id, 'gmo:schedule', name,
      unpack(args[13] == '1' and { 'gmo:repeats', member } or {}))
    L.jobs.route(job)
    L.events.emit(prefix .. 'events', 'added', job.id, 'name', job.name)
    reply[#reply + 1] = job.id
  end
  local last, finished = prefix .. 'gmo:schedulers:last', args[4]:match('^%+(.*)$')
  if finished then
    L.scheduler.write(keys[2], name, '')
    L.scheduler.write_finished(keys[3], name, finished, now)
    L.scheduler.plan(prefix, member, nil)
    redis.call('HDEL', last, name)
    return reply
  end
  L.scheduler.write(keys[2], name, args[4])
  L.scheduler.plan(prefix, member, args[12])
  if #reply > 1 then
    redis.call('HSET', last, name, reply[#reply] .. ' ' .. L.numbers.text(now))
  end
  return reply
end

redis.register_function('gmo_fire_scheduler', fire_scheduler)
