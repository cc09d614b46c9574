-- gmo_add_jobs: create jobs without deduplication, ordering key or parent, in order.
-- KEYS  1 id counter
-- ARGS  1 now_ms   then for each run of jobs that differ only in their data:
--       name, opts, max attempts, delay_ms, priority, ttl_ms, lifo (1 or 0), cost (milli), custom id, n, n times data
-- REPLY a text for each run: the id of its first job, and the ids of the others count up from it; or duplicate: a job
--       with the custom id exists, and nothing was added for this run
-- ERROR GMO_BAD_CALL: more than 1000 jobs, or arguments that are not valid runs. Nothing was changed.
-- EFFECTS those of glidemq_addJob for each job. Not idempotent for jobs without a custom id.
-- EVENT added {name} for each job
local MAX_JOBS, HEAD = 1000, 10

-- Reads the run at args[at], and how many jobs it has; nil and 0 when it is not valid.
local function read_run(args, at, now)
  local int = L.numbers.int
  local ttl, count = int(args[at + 5], 0), int(args[at + 9], 0)
  if count < 1 or count % 1 ~= 0 or not args[at + HEAD - 1 + count] or args[at + 8] ~= '' and count > 1 then
    return nil, 0
  end
  return {
    name = args[at], opts = args[at + 1], timestamp = now, max_attempts = int(args[at + 2], 0),
    delay = int(args[at + 3], 0), priority = int(args[at + 4], 0), expire_at = ttl > 0 and now + ttl or nil,
    lifo = args[at + 6] == '1', cost = int(args[at + 7], 0), custom_id = args[at + 8],
    first = at + HEAD, last = at + HEAD + count - 1,
  }, count
end

-- The runs in the arguments; nil when these do not match the header above.
local function read_runs(args, now)
  local runs, at, total = {}, 2, 0
  while args[at] do
    local run, count = read_run(args, at, now)
    total = total + count
    if not run or total > MAX_JOBS then
      return nil
    end
    runs[#runs + 1], at = run, run.last + 1
  end
  return now and runs or nil
end

-- Writes the hash of a job. `model`: key and length of the data of one of its run that may be copied, if any yet.
local function write_hash(run, count, model)
  local key = run.prefix .. 'job:' .. run.id
  if model.key and L.copies.of(model.key, key, model.length, #run.data) then
    redis.call('HSET', key, 'id', run.id, 'data', run.data)
    return
  end
  -- The copies of one with a late write would have that too.
  if count > 1 and redis.call('EXISTS', key) == 0 then
    model.key, model.length = key, #run.data
  end
  L.jobs.write(run)
end

-- Adds the jobs of a run and returns the id of the first.
local function add_run(prefix, args, run)
  local count, events = run.last - run.first + 1, prefix .. 'events'
  local last_id = run.custom_id == '' and redis.call('INCRBY', prefix .. 'id', count)
  local tags, tagged = L.tags.of_options(run.opts), {}
  local model = {}
  run.prefix, run.skip_tags = prefix, true
  for i = 1, count do
    run.id = last_id and L.numbers.fresh_text(last_id - count + i) or run.custom_id
    run.data = args[run.first + i - 1]
    write_hash(run, count, model)
    L.jobs.route(run)
    L.events.emit(events, 'added', run.id, 'name', run.name)
    if tags then tagged[i] = run.id end
  end
  if tags then
    L.tags.list(prefix, tagged, tags, L.numbers.text(run.timestamp))
  end
  return last_id and L.numbers.fresh_text(last_id - count + 1) or run.custom_id
end

local function add_jobs(keys, args)
  local runs = read_runs(args, L.numbers.int(args[1], nil))
  if not runs or keys[1]:sub(-3) ~= ':id' then
    return redis.error_reply('GMO_BAD_CALL gmo_add_jobs: the arguments are not valid')
  end
  local prefix, reply = L.hashes.prefix(keys[1], 'id'), {}
  for i, run in ipairs(runs) do
    if run.custom_id ~= '' and not L.ids.allocate(prefix, run.custom_id) then
      reply[i] = 'duplicate'
    else
      reply[i] = add_run(prefix, args, run)
    end
  end
  return reply
end

redis.register_function('gmo_add_jobs', add_jobs)
