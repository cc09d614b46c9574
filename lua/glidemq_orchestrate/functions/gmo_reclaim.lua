-- gmo_reclaim: take back the jobs of dead workers.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 consumer that takes them over  4 min_idle_ms  5 lock_ms  6 times a job may stall
-- REPLY ids of the flows that need gmo_advance_flow
-- EFFECTS those of glidemq_reclaimStalled and, for jobs that our workers took from a list, of
--   glidemq_reclaimStalledListJobs (a page of 100 each); a node that stalled too often fails with its dependents.
-- EVENT stalled or failed for each stalled job
local PAGE = 100

-- Reclaims stalled jobs that our workers took from a list; see fetch.lua.
local function reclaim_listed(r)
  local held = r.prefix .. 'gmo:list-held'
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', r.now - r.min_idle, 'LIMIT', 0, PAGE)) do
    local is_broken = L.jobs.bury(r.prefix, job_id, r.now)
    local key, job = r.prefix .. 'job:' .. job_id, not is_broken and L.jobs.read(r.prefix, job_id) or nil
    if is_broken then
      L.list_active.release(r.prefix .. 'list-active')
    end
    if not job or job.state ~= 'active' then
      redis.call('ZREM', held, job_id)
    elseif L.stalled.is_alive(r.prefix, job_id, job, r.now, r.lock_duration, r.min_idle) then
      redis.call('ZADD', held, L.numbers.int(job.lastActive, r.now), job_id)
    else
      redis.call('ZREM', held, job_id)
      L.list_active.release(r.prefix .. 'list-active')
      if L.stalled.stall(r.prefix, job_id, job, r.max_stalled, r.now) == 'failed' then
        r.on_dead(job_id)
      else
        redis.call('HSET', key, 'state', 'waiting')
        redis.call('HDEL', key, 'processedOn', 'lastActive')
        L.jobs.make_ready(r.prefix, job_id, job, L.numbers.int(job.priority, 0))
      end
    end
  end
end

local function reclaim(keys, args)
  local prefix, now, flows = keys[1]:sub(1, -#'stream' - 1), tonumber(args[1]), {}
  local r = {
    prefix = prefix, group = args[2], consumer = args[3], min_idle = tonumber(args[4]), lock_duration = tonumber(args[5]),
    max_stalled = tonumber(args[6]), now = now, failed_key = prefix .. 'failed',
    on_dead = function(job_id)
      L.dead_letters.note(prefix, job_id, now)
      local reason = redis.call('HGET', prefix .. 'job:' .. job_id, 'failedReason') or 'stalled'
      local flow_id = L.settle.job_failed(prefix, job_id, reason, now)
      if flow_id ~= '' then
        flows[#flows + 1] = flow_id
      end
    end,
  }
  reclaim_listed(r)
  L.reclaim.stream(r)
  return flows
end

redis.register_function { function_name = 'gmo_reclaim', callback = reclaim, flags = { 'allow-oom' } }
