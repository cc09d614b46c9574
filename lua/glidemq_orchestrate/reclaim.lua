-- gmo_reclaim: take back the jobs of dead workers.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 consumer that takes them over  4 min_idle_ms  5 lock_ms  6 times a job may be lost
-- REPLY ids of the flows that need gmo_advance_flow
-- EFFECTS those of glidemq_reclaimStalled (one page of 100); a node that was lost too often fails with its dependents.
-- EVENT stalled or failed for each lost job
local function reclaim(keys, args)
  local prefix, now, flows = keys[1]:sub(1, -#'stream' - 1), tonumber(args[1]), {}
  L.reclaim.stream {
    prefix = prefix, group = args[2], consumer = args[3], min_idle = tonumber(args[4]), lock_duration = tonumber(args[5]),
    max_stalled = tonumber(args[6]), now = now, failed_key = prefix .. 'failed',
    on_dead = function(job_id)
      local reason = redis.call('HGET', prefix .. 'job:' .. job_id, 'failedReason') or 'stalled'
      local flow_id = L.settle.job_failed(prefix, job_id, reason, now)
      if flow_id ~= '' then
        flows[#flows + 1] = flow_id
      end
    end,
  }
  return flows
end

redis.register_function { function_name = 'gmo_reclaim', callback = reclaim, flags = { 'allow-oom' } }
