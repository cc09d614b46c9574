-- park: what the functions share that take an active job from its worker before it is finished.

local M = {}
L.park = M

-- The job when it is active; else nil and the reply that says why not.
function M.active_job(prefix, job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job then
    return nil, 'error:not_found'
  elseif job.state ~= 'active' then
    return nil, 'error:not_active'
  end
  return job, nil
end

-- Ordered jobs keep their slot while they wait; all others give it back.
function M.release_unordered(prefix, job, now)
  if L.numbers.int(job.orderingSeq, 0) <= 0 then
    L.groups.leave(prefix, job, now)
  end
end

function M.release_list_slot(prefix, entry_id)
  if entry_id == '' then
    L.list_active.release(prefix .. 'list-active')
  end
end
