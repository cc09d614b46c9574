-- glidemq_addFlow: create a parent that waits for its children, and the children.
-- KEYS  1 to 4 id, stream, scheduled, events of the parent's queue; then the same four per child
-- ARGS  1 name  2 data  3 opts  4 now  5 delay  6 priority  7 maxAttempts  8 number of children n  9 customId
--       then per child: name, data, opts, delay, priority, maxAttempts, queue prefix without the last colon,
--       parent queue name, customId; then the number m of further dependencies, and m members of the deps set
-- REPLY JSON array of the ids, parent first | ["duplicate"] | ["ERR:ID_EXHAUSTED"]
--       | ERR:COST_EXCEEDS_CAPACITY (plain text)
-- EVENT added {name} of each child, then of the parent
-- All checks come before the first write, except that ids are taken from the counters.

local WIDTH = 9

local function apply_options(job)
  local o = L.options.decode(job.opts)
  job.o = o
  job.cost, job.lifo = o.cost, o.lifo
  if o.ttl > 0 then
    job.expire_at = job.timestamp + o.ttl
  end
  return job
end

local function parse_parent(keys, args, now)
  local int = L.numbers.int
  local parent = apply_options({
    prefix = L.hashes.prefix(keys[1], 'id'), name = args[1], data = args[2], opts = args[3],
    timestamp = now, delay = int(args[5], 0), priority = int(args[6], 0), max_attempts = int(args[7], 0),
    custom_id = args[9] or '', state = 'waiting-children',
  })
  parent.lifo = false
  return parent
end

local function parse_child(keys, args, i, now)
  local int, at = L.numbers.int, WIDTH * i
  return apply_options({
    prefix = L.hashes.prefix(keys[4 * i + 1], 'id'), name = args[at + 1], data = args[at + 2],
    opts = args[at + 3], timestamp = now, delay = int(args[at + 4], 0), priority = int(args[at + 5], 0),
    max_attempts = int(args[at + 6], 0), queue = args[at + 7], parent_queue = args[at + 8],
    custom_id = args[at + 9] or '',
  })
end

-- Keys of the custom ids of parent and children; nil when one is in use or occurs twice.
local function taken_keys(parent, children)
  local taken = { [parent.prefix .. 'job:' .. parent.id] = true }
  for _, child in ipairs(children) do
    if child.custom_id ~= '' then
      local key = child.prefix .. 'job:' .. child.custom_id
      if taken[key] or L.ids.exists(child.prefix, child.custom_id) then
        return nil
      end
      taken[key] = true
    end
  end
  return taken
end

local function is_too_expensive(parent, children)
  if parent.o.ordering_key ~= '' and L.group_setup.is_too_expensive(parent.o, 0) then
    return true
  end
  for _, child in ipairs(children) do
    if child.o.ordering_key ~= '' and L.group_setup.is_too_expensive(child.o, 1000) then
      return true
    end
  end
  return false
end

-- Assigns an id to every job. Returns nil, or the reply with the reason.
local function assign_ids(parent, children)
  parent.id = parent.custom_id ~= '' and L.ids.allocate(parent.prefix, parent.custom_id)
  if parent.custom_id == '' then
    parent.id = L.ids.probe(parent.prefix)
  end
  if not parent.id then
    return parent.custom_id ~= '' and '["duplicate"]' or '["ERR:ID_EXHAUSTED"]'
  end
  local taken = taken_keys(parent, children)
  if not taken then
    return '["duplicate"]'
  end
  if is_too_expensive(parent, children) then
    return 'ERR:COST_EXCEEDS_CAPACITY'
  end
  for _, child in ipairs(children) do
    if child.custom_id ~= '' then
      child.id = L.ids.allocate(child.prefix, child.custom_id)
    else
      child.id = L.ids.probe(child.prefix, taken)
    end
    if not child.id then
      return '["ERR:ID_EXHAUSTED"]'
    end
  end
  return nil
end

local function write(job, is_parent)
  if job.o.ordering_key ~= '' then
    job.group_key = job.o.ordering_key
    job.ordering_seq = L.group_setup.join_flow(job.prefix, job.group_key, job.o, job.timestamp, is_parent)
  end
  L.jobs.write(job)
end

local function announce(job)
  L.events.emit(job.prefix .. 'events', 'added', job.id, 'name', job.name)
end

local function add_flow(keys, args)
  local now, n = L.numbers.int(args[4], nil), L.numbers.int(args[8], nil)
  if not now or not n then
    return redis.error_reply('ERR glidemq_addFlow: timestamp or number of children is not a number')
  end
  local parent, children = parse_parent(keys, args, now), {}
  for i = 1, n do
    children[i] = parse_child(keys, args, i, now)
  end
  local refusal = assign_ids(parent, children)
  if refusal then
    return refusal
  end
  local ids, deps_key = { parent.id }, parent.prefix .. 'deps:' .. parent.id
  write(parent, true)
  for i, child in ipairs(children) do
    child.parent_id = parent.id
    write(child, false)
    redis.call('SADD', deps_key, child.queue .. ':' .. child.id)
    L.jobs.route(child)
    announce(child)
    ids[i + 1] = child.id
  end
  local extras = WIDTH * (n + 1) + 1
  for i = 1, L.numbers.int(args[extras], 0) do
    redis.call('SADD', deps_key, args[extras + i])
  end
  announce(parent)
  return cjson.encode(ids)
end

redis.register_function('glidemq_addFlow', add_flow)
