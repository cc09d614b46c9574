-- gmo_check_open: check and repair a page of the open nodes of a running flow.
-- KEYS  1 flow hash
-- ARGS  1 now_ms  2 flow id  3 position in the order of the nodes ('0' first)  4 limit  5 silent_ms: max time without a
--       heartbeat
-- REPLY {next position ('0' = end), then for each suspect: ref, trace ('' = the job is missing)}
-- EFFECTS nodes that were ended elsewhere are settled; delayed nodes that are in no schedule go to the stream; revoked
--   nodes that wait for dependencies fail; those whose dependencies have all ended run, or end. A flow with open work
--   is in gmo:todo again, one without open nodes ends. A suspect waits or runs, and a short search did not find it in
--   its place; a suspect that waits for dependencies is for gmo_notify_again.

-- The two numbers of an entry id.
local function parts(entry_id)
  local ms, seq = entry_id:match('^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

-- The last entry delivered to the workers' group; a group created later starts at the beginning.
local function delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    local info = {}
    for i = 1, #group, 2 do
      info[group[i]] = group[i + 1]
    end
    if info.name == 'workers' then
      return { parts(info['last-delivered-id']) }
    end
  end
  return { 0, 0 }
end

local seen_groups = {} -- valid for one call, during which nothing is delivered

-- Whether the entry has not been delivered yet.
local function is_ahead(stream, entry_id)
  seen_groups[stream] = seen_groups[stream] or delivered(stream)
  local ms, seq = parts(entry_id)
  local last = seen_groups[stream]
  return ms > last[1] or (ms == last[1] and seq > last[2])
end

-- Whether the job's entry will be delivered, or is held by a worker.
local function has_entry(prefix, job_id, entry_id)
  if entry_id == '' then
    return false
  end
  local stream = prefix .. 'stream'
  local entry = redis.call('XRANGE', stream, entry_id, entry_id)[1]
  if not entry or L.stream.job_id(entry[2]) ~= job_id then
    return false
  end
  local held = redis.pcall('XPENDING', stream, 'workers', entry_id, entry_id, 1)
  return held.err or #held == 1 or is_ahead(stream, entry_id)
end

-- The score of a job in the schedule, or false.
local function is_scheduled(prefix, job_id)
  return redis.call('ZSCORE', prefix .. 'scheduled', job_id)
end

-- Whether a job is in the place for its state; nil where a short search cannot decide that.
local function is_in_place(prefix, job_id, fields, now, silent)
  local state = fields[1]
  if state == 'delayed' or state == 'prioritized' then
    return is_scheduled(prefix, job_id) and true or false
  elseif state == 'active' and fields[9] == '' then -- glidemq_reclaimStalledListJobs handles jobs of the lists
    local last = tonumber(fields[3]) or tonumber(fields[2]) or 0
    return now - last < silent or has_entry(prefix, job_id, fields[6]) or nil
  elseif state == 'waiting' then
    return has_entry(prefix, job_id, fields[6]) and true or nil
  end
  return true
end

-- Looks for the jobs of the elements of an array, as for those of nodes.
local function check_array(c, prefix, array_id)
  L.arrays.ensure(prefix, array_id, c.now, function(job_id)
    local seen, fields = L.open_nodes.trace(prefix .. 'job:' .. job_id)
    local is_found = not fields or is_in_place(prefix, job_id, fields, c.now, c.silent)
    if is_found == false then
      L.open_nodes.put_back(prefix, job_id)
    elseif is_found == nil then
      c.suspects[#c.suspects + 1], c.suspects[#c.suspects + 2] = prefix .. job_id, seen
    end
  end)
end

-- Fails a revoked node that waits for dependencies. Returns the cost.
local function fail_revoked(prefix, job_id, now)
  local flow = L.record.of_job(prefix, job_id)
  if not flow then
    return 0
  end
  L.end_nodes.fail_and_notify(flow, prefix .. job_id, 'revoked', now)
  return L.open_nodes.REVOKED
end

-- Checks one open node. Returns the cost, and its trace if it is a suspect.
local function check_node(c, ref)
  local prefix, job_id = L.record.split(ref)
  local seen, fields = L.open_nodes.trace(prefix .. 'job:' .. job_id)
  if not fields then
    return 0, ''
  end
  local state = fields[1]
  if state == 'waiting-children' then
    local revoked = fields[10] == '1' and fail_revoked(prefix, job_id, c.now) or 0
    local cost, is_suspect = 0, false
    if revoked == 0 and c.is_at_rest then
      cost, is_suspect = L.blocked.check(c.flow, c.key, ref, c.now)
    end
    return revoked + cost, is_suspect and seen or nil
  elseif state == 'completed' or state == 'failed' then
    return L.foreign.settle(prefix, job_id, c.now), nil
  elseif state == 'active' and fields[12] ~= '' then -- workers hold slices or elements of it, not the array
    return 0, check_array(c, prefix, job_id)
  end
  local is_found = is_in_place(prefix, job_id, fields, c.now, c.silent)
  if is_found == false then
    L.open_nodes.put_back(prefix, job_id)
    return L.open_nodes.PUT_BACK, nil
  end
  return 0, is_found == nil and seen or nil
end

local function check_open(keys, args)
  local key, at, limit = keys[1], tonumber(args[3]), tonumber(args[4])
  local ahead = 2 * limit
  seen_groups = {}
  local record = redis.call('HMGET', key, 'state', 'path')
  if record[1] ~= 'running' or record[2] then -- clients advance flows of the portable path
    return { '0' }
  end
  L.order.ensure(key)
  local flow = { home = L.record.home(key, args[2]), id = args[2], node = 'flow' }
  local c = { key = key, flow = flow, now = tonumber(args[1]), silent = tonumber(args[5]),
    is_at_rest = L.blocked.is_at_rest(flow, key, tonumber(args[1])), suspects = {} }
  local page, refs, reply, spent = redis.call('LRANGE', key .. ':order', at, at + ahead - 1), {}, { '0' }, 0
  for i, entry in ipairs(page) do
    local _, ref = L.order.split(entry)
    refs[i] = ref
  end
  local open = #refs > 0 and redis.call('SMISMEMBER', key .. ':open', unpack(refs)) or {}
  for i, ref in ipairs(refs) do
    if open[i] == 1 then
      if spent >= limit then
        reply[1] = L.numbers.text(at + i - 1)
        break
      end
      local cost, suspect = check_node(c, ref)
      spent = spent + 1 + cost
      if suspect then
        c.suspects[#c.suspects + 1], c.suspects[#c.suspects + 2] = ref, suspect
      end
    end
  end
  if #page == ahead and reply[1] == '0' then
    reply[1] = L.numbers.text(at + ahead)
  end
  for i, word in ipairs(c.suspects) do reply[i + 1] = word end
  return reply
end

redis.register_function { function_name = 'gmo_check_open', callback = check_open, flags = { 'allow-oom' } }
