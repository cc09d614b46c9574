-- glidemq_drain: delete the waiting jobs, and optionally the scheduled ones.
-- KEYS  1 stream  2 scheduled  3 events  4 id counter  5 lifo  6 priority
-- ARGS  1 `1` = scheduled jobs too  2 group
-- REPLY integer: jobs removed
-- EVENT drained, with the count as job id

local PENDING_PAGE = 10000

-- The entries that consumers of the group hold. A missing stream or group has none.
local function pending_entries(stream_key, group)
  local held, from = {}, '-'
  while true do
    local page = redis.pcall('XPENDING', stream_key, group, from, '+', PENDING_PAGE)
    if page.err then
      return held
    end
    for _, entry in ipairs(page) do
      held[entry[1]] = true
    end
    if #page < PENDING_PAGE then
      return held
    end
    from = '(' .. page[#page][1]
  end
end

-- Groups are notified at the end, as a job promoted in between would be drained too.
local function discard(d, job_id)
  d.count = d.count + 1
  local job = d.has_groups and L.jobs.read(d.prefix, job_id)
  if job and job.groupKey then
    d.groups[job.groupKey] = d.groups[job.groupKey] or L.groups.load(d.prefix, job.groupKey)
    L.groups.leave(d.prefix, job, 0, d.groups[job.groupKey])
  end
  L.jobs.unlink(d.prefix, job_id)
end

local function drain_stream(d, stream_key, group)
  local held, dead = pending_entries(stream_key, group), {}
  L.stream.each(stream_key, function(entry_id, job_id)
    if not held[entry_id] then
      dead[#dead + 1] = entry_id
      if job_id and job_id ~= '' then
        discard(d, job_id)
      end
    end
    return false
  end)
  L.hashes.slices(#dead, function(first, last)
    redis.call('XDEL', stream_key, unpack(dead, first, last))
  end)
end

local function drain_all(d, key, members)
  for _, job_id in ipairs(members) do
    discard(d, job_id)
  end
  redis.call('UNLINK', key)
end

-- A list still contains jobs that were revoked while they waited there; these are in the failed set too.
local function drain_list(d, key)
  local members = redis.call('LRANGE', key, 0, -1)
  drain_all(d, key, members)
  L.hashes.zrem_all(d.prefix .. 'failed', members)
end

local function drain(keys, args)
  local prefix = L.hashes.prefix(keys[4], 'id')
  local has_groups = redis.call('EXISTS', prefix .. 'ordering') == 1
  local d = { prefix = prefix, count = 0, groups = {}, has_groups = has_groups }
  drain_stream(d, keys[1], args[2])
  if L.numbers.flag(args[1]) then
    drain_all(d, keys[2], redis.call('ZRANGE', keys[2], 0, -1))
  end
  drain_list(d, keys[5])
  drain_list(d, keys[6])
  for group_key, group in pairs(d.groups) do
    L.groups.promote(prefix, group_key, group, 0)
  end
  if d.count > 0 then
    L.events.emit(keys[3], 'drained', L.numbers.text(d.count))
  end
  return d.count
end

redis.register_function({ function_name = 'glidemq_drain', callback = drain, flags = { 'allow-oom' } })
