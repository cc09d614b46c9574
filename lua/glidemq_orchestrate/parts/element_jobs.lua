-- element_jobs: elements of an array as ordinary jobs, which every worker of the queue can run. Of an array whose
-- definition has `jobs`, at most so many of them exist at once. They have the id
-- "<job id of the array>{<element>.<number>}", the options of the array, the item in their data, and the fields gmo:element
-- (job id of the array) and gmo:elements (the element). The end of such a job is noted in the array and the job removed:
-- by the call that ends it, or if that was not ours, by the supervisor.
--   <prefix>gmo:array:<job id>:jobs   set: the ids of these jobs
L.element_jobs = {}
local AT_FIRST, AT_ONCE, COST, LOG, REVOKED_MS = 100, 4, 5, 100, 600000
local int, text = L.numbers.int, L.numbers.text

-- The array job's field for each of its elements.
local OF_ARRAY = { 'name', 'data', 'opts', 'priority', 'maxAttempts', 'budgetKey' }

-- The job id of the array, if this is the job of an element.
function L.element_jobs.array_of(prefix, job_id)
  return job_id:byte(-1) == 125 and redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:element') or nil
end

-- Makes the job of an element. One that can never start has failed.
local function create(a, v, element, now)
  local number = redis.call('HINCRBY', a.key, 'leases', 1)
  local job_id, name, position = a.id .. '{' .. text(element) .. '.' .. number .. '}', v[1] or '', text(element)
  local item = L.slice_items.one(a, element)
  local opts, reason = L.element_job_data.options(a, v[3] or '{}', item)
  redis.call('UNLINK', a.prefix .. 'job:' .. job_id) -- the mark of an earlier flow of this id, which is about to expire
  redis.call('HSET', a.prefix .. 'job:' .. job_id, 'id', job_id, 'name', name, 'data', L.element_job_data.data(v[2], item), 'opts',
    opts or '{}', 'timestamp', text(now), 'attemptsMade', '0', 'delay', text(math.max(a.opened - now, 0)), 'priority',
    v[4] or '0', 'maxAttempts', v[5] or '0', 'gmo:element', a.id, 'gmo:elements', position)
  if v[6] then redis.call('HSET', a.prefix .. 'job:' .. job_id, 'budgetKey', v[6]) end
  redis.call('SADD', a.key .. ':jobs', job_id)
  if opts and not L.release.place(a.prefix, job_id, name, now) then
    reason = 'its cost exceeds the capacity of its token bucket'
  end
  if reason then
    L.jobs.set_failed(a.prefix, job_id, reason, now)
    L.events.emit(a.prefix .. 'events', 'failed', job_id, 'failedReason', reason)
  end
end

-- Makes jobs of the next elements, as many as may exist; with few of them per call.
function L.element_jobs.top_up(a, now)
  local held = redis.call('SCARD', a.key .. ':jobs')
  local most = a.max_running > 0 and math.min(a.jobs, a.max_running) or a.jobs
  local room = math.min(most - held, held == 0 and AT_FIRST or AT_ONCE)
  local v = room > 0 and redis.call('HMGET', a.prefix .. 'job:' .. a.id, unpack(OF_ARRAY))
  while room > 0 do
    local elements = L.slices.next_elements(a, room, now)
    if #elements == 0 then
      return
    end
    for _, element in ipairs(elements) do create(a, v, element, now) end
    room = room - #elements
  end
end

-- Notes in the array how the job of an element has ended: `v` has its state, result, reason, gmo:skipped, attemptsMade.
local function note(x, a, element, v, items)
  local made = int(v[5], 0)
  if v[1] ~= 'completed' then
    if made > 1 then redis.call('HSET', a.key .. ':attempts', text(element), text(made - 1)) end
    local reason = (v[3] or 'its job was removed'):gsub('[\r\n]+', ' ')
    return L.elements.note_one(x, a, element, 'f0 0 ' .. reason, items)
  end
  local result = v[2] and v[2] ~= 'null' and v[2] or ''
  L.elements.note_one(x, a, element, v[4] and 's' .. v[4] or 'd' .. result, items)
end

-- Keeps the log of the job of an element, which another library has written, in that of its array.
local function keep_log(prefix, array_id, job_id, position)
  local lines = redis.call('LRANGE', prefix .. 'log:' .. job_id, -LOG, -1)
  for i, line in ipairs(lines) do lines[i] = '[' .. position .. '] ' .. line end
  if #lines > 0 then redis.call('RPUSH', prefix .. 'log:' .. array_id, unpack(lines)) end
end

-- Notes the end of the job of an element and removes it; with the items that it adds to its array. x: now, flows, and
-- what L.array_ends.end_if_done reads. Nothing but the job changes if the array runs no longer, or has taken the job back.
function L.element_jobs.settle(x, prefix, job_id, items)
  local key = prefix .. 'job:' .. job_id
  local array_id, element = job_id:match('^(.*){(%d+)%.%d+}$')
  local a = array_id and L.arrays.read(prefix, array_id)
  local v = redis.call('HMGET', key, 'state', 'returnvalue', 'failedReason', 'gmo:skipped', 'attemptsMade')
  local counts = a and redis.call('SREM', a.key .. ':jobs', job_id) == 1
  if counts then
    redis.call('HSETNX', prefix .. 'job:' .. array_id, 'processedOn', text(x.now))
    note(x, a, tonumber(element), v, items or {})
    keep_log(prefix, array_id, job_id, element)
  end
  redis.call('ZREM', prefix .. 'completed', job_id)
  redis.call('ZREM', prefix .. 'failed', job_id)
  L.jobs.erase(prefix, job_id)
  if counts and not L.array_ends.end_if_done(x, a) then
    L.element_jobs.top_up(a, x.now)
    L.array_ends.tell(a, x.now)
  end
  x.spent = (x.spent or 0) + COST
end

-- Settles the jobs of elements that have ended or were removed elsewhere, looks for the others, and makes new ones.
function L.element_jobs.ensure(a, now, look)
  local x = { now = now, flows = {} }
  for _, job_id in ipairs(redis.call('SMEMBERS', a.key .. ':jobs')) do
    local state = redis.call('HGET', a.prefix .. 'job:' .. job_id, 'state')
    if not state or state == 'completed' or state == 'failed' then
      L.element_jobs.settle(x, a.prefix, job_id)
    elseif look then
      look(job_id)
    end
  end
  if redis.call('ZSCORE', a.prefix .. 'gmo:arrays', a.id) then
    L.element_jobs.top_up(L.arrays.read(a.prefix, a.id), now)
  end
end

-- Removes the job of an element, so that no attempt of it is accepted any more. A Node worker that runs it looks for the
-- field revoked.
local function take(a, job_id, now)
  local key, job = a.prefix .. 'job:' .. job_id, L.jobs.read(a.prefix, job_id)
  if not job then
    return
  end
  local entry = redis.call('HGET', key, 'gmo:entry')
  redis.call('ZREM', a.prefix .. 'gmo:list-held', job_id)
  L.remove.job(a.prefix, job_id, job, entry and entry ~= '' and entry or nil, 0, now)
  if job.state == 'active' then
    redis.call('HSET', key, 'revoked', '1')
    redis.call('PEXPIRE', key, REVOKED_MS)
    L.events.emit(a.prefix .. 'events', 'revoked', job_id)
  end
end

-- Takes the job of an element back; false if it has none.
function L.element_jobs.take(a, element, now)
  for _, job_id in ipairs(a.jobs > 0 and redis.call('SMEMBERS', a.key .. ':jobs') or {}) do
    if tonumber(job_id:match('{(%d+)%.%d+}$')) == element then
      take(a, job_id, now)
      return redis.call('SREM', a.key .. ':jobs', job_id) == 1
    end
  end
  return false
end

-- Takes the jobs of all elements back. Their elements may run again.
function L.element_jobs.take_all(a, now)
  local back = {}
  for _, job_id in ipairs(redis.call('SMEMBERS', a.key .. ':jobs')) do
    take(a, job_id, now)
    back[#back + 1], back[#back + 2] = '0', job_id:match('{(%d+)%.%d+}$')
  end
  redis.call('UNLINK', a.key .. ':jobs')
  if #back > 0 then redis.call('ZADD', a.key .. ':again', unpack(back)) end
end

-- Whether a worker has begun an element.
function L.element_jobs.have_begun(prefix, array_id)
  for _, job_id in ipairs(redis.call('SMEMBERS', prefix .. 'gmo:array:' .. array_id .. ':jobs')) do
    if L.due.has_begun(prefix .. 'job:' .. job_id) then
      return true
    end
  end
  return false
end

-- Adds what our workers need of its array to the fields of a started job `v`: flow and node. Returns the inputs of the
-- array, nil, and {its job id, the element, '1' if it is over a list}.
function L.element_jobs.about(x, job_id, array_id, v)
  local of = redis.call('HMGET', x.prefix .. 'job:' .. array_id, 'gmo:flow', 'gmo:node', 'gmo:array')
  local is_list = cjson.decode(of[3] or '{"per":0}').per > 0
  v[5], v[6] = of[1], of[2]
  redis.call('HSETNX', x.prefix .. 'job:' .. array_id, 'processedOn', x.now_text)
  return L.inputs.read(x.prefix, array_id), nil, { array_id, job_id:match('{(%d+)%.%d+}$') or '0', is_list and '1' or '' }
end

-- Reads the outcome of kind `elements` of the job of an element, which completes it and adds items to its array; it is
-- not removed by its retention.
function L.element_jobs.read_line(o)
  o.retention = ''
  if o.kind == 'elements' then
    local lines = {}
    for line in L.positions.lines(o.text) do lines[#lines + 1] = line:sub(2) end
    o.kind, o.text, o.items = 'done', lines[1] or '', { unpack(lines, 2) }
    if o.text == '' then o.text = 'null' end
  end
end
