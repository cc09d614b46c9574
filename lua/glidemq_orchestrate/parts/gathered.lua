-- gathered: what the outcomes of a call do together, in few commands: entries to remove, completed jobs to list, and the
-- counts of flows. Part of gmo_finish_and_fetch.
L.gathered = {}

-- Lists a completed job that stays until something else removes it.
function L.gathered.list(x, job_id)
  x.listed[#x.listed + 1], x.listed[#x.listed + 2] = x.now_text, job_id
end

-- Notes which jobs could not be listed, for their verdicts: a list with a broken key must not harm other outcomes.
local function note_broken(x, listed, err)
  x.unlisted = x.unlisted or {}
  for i = 2, #listed, 2 do
    x.unlisted[listed[i]] = 'error ' .. err
  end
end

-- Does all of it but for the entries. Call it before anything that reads or changes the ends of jobs and nodes.
function L.gathered.flush(x)
  local listed = x.listed
  x.listed = {}
  for first = 1, #listed, 1000 do
    local last = math.min(first + 999, #listed)
    local reply = redis.pcall('ZADD', x.prefix .. 'completed', unpack(listed, first, last))
    if type(reply) == 'table' then
      note_broken(x, listed, reply.err)
    end
  end
  L.settle.flush(x.ended, x.now)
end

-- The verdict on an outcome that was accepted, unless its job could not be listed.
function L.gathered.verdict(x, job_id, verdict)
  return verdict == 'ok' and x.unlisted and x.unlisted[job_id] or verdict
end

-- Notifies the dependents of a completed job outside flows, and returns how many it has. One command shows whether any
-- reported job has some: those outside flows do not get any in this call.
function L.gathered.notify_dependents(x, job_id)
  if x.have_dependents == nil then
    local keys = {}
    for i, id in ipairs(x.reported) do keys[i] = x.prefix .. 'parents:' .. id end
    x.have_dependents = #keys == 1 or L.stage.any_exists(keys)
  end
  return x.have_dependents and L.parents.notify_all(x.prefix, job_id) or 0
end

-- Removes the entry of a job that has ended, or frees its slot if it is from a list.
function L.gathered.release(x, o)
  if o.entry_id == '' then
    L.list_active.release(x.prefix .. 'list-active')
    redis.call('ZREM', x.prefix .. 'gmo:list-held', o.job_id)
  else
    x.entries[#x.entries + 1] = o.entry_id
  end
end

function L.gathered.remove_entries(x)
  if #x.entries > 0 then
    redis.call('XACK', x.stream, x.group, unpack(x.entries))
    redis.call('XDEL', x.stream, unpack(x.entries))
  end
end
