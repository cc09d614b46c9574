-- admission: whether a ready job may start now. Part of fetch.lua.
L.admission = {}

-- Whether glide-mq's rules for revoked, expiring and grouped jobs allow the job to start; else it is ended or parked.
function L.admission.pass(x, job_id, entry_id)
  local why = L.activate.job { prefix = x.prefix, job_id = job_id, entry_id = entry_id, group = x.group, now = x.now }
  if not why then
    return true
  end
  if why == 'REVOKED' then
    if entry_id == '' then -- L.finish.fail frees a slot of the lists
      redis.call('INCR', x.prefix .. 'list-active')
    end
    L.finish.fail { prefix = x.prefix, job_id = job_id, entry_id = entry_id, group = x.group, reason = 'revoked',
      now = x.now, max_attempts = 0, backoff = 0, remove_mode = '0', keeps_start = true }
  end
  local after = redis.call('HMGET', x.prefix .. 'job:' .. job_id, 'state', 'failedReason')
  if after[1] == 'failed' then
    L.dead_letters.note(x.prefix, job_id, x.now, nil, why == 'REVOKED')
    x.flows[#x.flows + 1] = L.settle.job_failed(x.prefix, job_id, after[2] or why, x.now)
    L.keeping.of_failed(x.prefix, job_id, x.now)
  end
  return false
end
