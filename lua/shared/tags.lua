-- tags: words by which jobs are found.
--   job:<id>                   its field gmo:tags: JSON list of its tags; without it, `tags` of its options
--   <prefix>qx:tag:<tag>       zset: job id -> when it got the tag
--   <prefix>qx:tags            zset: tag -> how many jobs have it
-- A count changes with its list, and cleanup counts again. Jobs that another library removes stay in the lists until
-- somebody reads them, or until cleanup finds them.

local M = {}
L.tags = M

local MAX_TAGS, MAX_LENGTH = 32, 256
local leaving -- by list, the jobs that leave it at the end of M.together

-- Sets the count of a tag to that of its list.
function M.recount(prefix, tag)
  local count = redis.call('ZCARD', prefix .. 'qx:tag:' .. tag)
  if count > 0 then
    redis.call('ZADD', prefix .. 'qx:tags', count, tag)
  else
    redis.call('ZREM', prefix .. 'qx:tags', tag)
  end
end

-- The valid tags of a JSON list or table, each once, at most 32.
local function valid(list)
  local found, seen = {}, {}
  for _, tag in ipairs(type(list) == 'table' and list or {}) do
    if type(tag) == 'string' and tag ~= '' and #tag <= MAX_LENGTH * 4 and not seen[tag] and #found < MAX_TAGS then
      seen[tag], found[#found + 1] = true, tag
    end
  end
  return found
end

-- Puts at most 1000 jobs into the lists of the same tags. `since`: a text, which is cheaper for many jobs.
function M.list(prefix, job_ids, tags, since)
  if leaving then M.settle() end
  local members = {}
  for i = 1, #job_ids do
    members[2 * i - 1], members[2 * i] = since, job_ids[i]
  end
  for _, tag in ipairs(tags) do
    local added = redis.call('ZADD', prefix .. 'qx:tag:' .. tag, 'NX', unpack(members))
    if added > 0 then
      redis.call('ZADD', prefix .. 'qx:tags', 'INCR', added, tag)
    end
  end
end

-- The last options with tags: jobs that are added or removed together often have the same.
local last = { opts = '', tags = {} }

-- The tags in the options of a job, not to be changed; nil without any.
function M.of_options(opts)
  if not string.find(opts, '"tags":', 1, true) then
    return nil
  elseif opts ~= last.opts then
    local is_json, options = pcall(cjson.decode, opts)
    last = { opts = opts, tags = valid(is_json and type(options) == 'table' and options.tags) }
  end
  return last.tags[1] and last.tags
end

-- The tags of a job, not to be changed.
function M.of(prefix, job_id)
  local v = redis.pcall('HMGET', prefix .. 'job:' .. job_id, 'gmo:tags', 'opts')
  if v[1] then
    local is_json, found = pcall(cjson.decode, v[1])
    return is_json and valid(found) or {}
  end
  return v[2] and M.of_options(v[2]) or {}
end

local function store(prefix, job_id, tags)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:tags', #tags > 0 and cjson.encode(tags) or '[]')
end

-- Lists a new job under the tags in its options, if any.
function M.adopt(prefix, job_id, opts, since)
  local tags = M.of_options(opts)
  if tags then
    M.list(prefix, { job_id }, tags, since)
  end
end

-- Adds tags to an existing job and returns all its tags; nil, and nothing was changed, if they are more than 32.
function M.add(prefix, job_id, tags, since)
  local all, seen, known = {}, {}, M.of(prefix, job_id)
  for _, some in ipairs { known, tags } do
    for _, tag in ipairs(some) do
      if not seen[tag] then
        seen[tag], all[#all + 1] = true, tag
      end
    end
  end
  if #all > MAX_TAGS then
    return nil
  end
  if #all > #known then
    store(prefix, job_id, all)
  end
  M.list(prefix, { job_id }, all, since)
  return all
end

-- Takes tags off an existing job and returns the others. Tags that it does not have are ignored.
function M.take_off(prefix, job_id, tags)
  local removed, rest, known = {}, {}, M.of(prefix, job_id)
  for _, tag in ipairs(tags) do
    removed[tag] = true
  end
  for _, tag in ipairs(known) do
    if not removed[tag] then
      rest[#rest + 1] = tag
    end
  end
  if #rest < #known then
    store(prefix, job_id, rest)
  end
  for tag in pairs(removed) do
    M.delist(prefix, tag, { job_id })
  end
  return rest
end

-- Removes jobs from the list of a tag.
function M.delist(prefix, tag, job_ids)
  local removed = 0
  L.hashes.slices(#job_ids, function(from, to)
    removed = removed + redis.call('ZREM', prefix .. 'qx:tag:' .. tag, unpack(job_ids, from, to))
  end)
  if removed > 0 and tonumber(redis.call('ZADD', prefix .. 'qx:tags', 'INCR', -removed, tag)) <= 0 then
    M.recount(prefix, tag)
  end
end

-- Removes the gathered jobs from their lists now. A list whose key has another type must not harm the others.
function M.settle()
  local lists = leaving
  leaving = {}
  for _, list in pairs(lists) do
    pcall(M.delist, list.prefix, list.tag, list)
  end
end

-- Calls act(...) and returns its result. The jobs that it removes leave the lists of their tags together, at the end.
function M.together(act, ...)
  leaving = {}
  local is_fine, result = pcall(act, ...)
  M.settle()
  leaving = nil
  if not is_fine then error(result, 0) end
  return result
end

-- Removes a job, which is about to be removed, from all lists. The field stays as long as its hash.
function M.forget(prefix, job_id)
  for _, tag in ipairs(M.of(prefix, job_id)) do
    if leaving then
      local key = prefix .. 'qx:tag:' .. tag
      local list = leaving[key] or { prefix = prefix, tag = tag }
      leaving[key], list[#list + 1] = list, job_id
    else
      M.delist(prefix, tag, { job_id })
    end
  end
end

-- Lists a job again that was removed, except for its definition.
function M.relist(prefix, job_id)
  local since = L.numbers.int(redis.call('HGET', prefix .. 'job:' .. job_id, 'timestamp'), 0)
  M.list(prefix, { job_id }, M.of(prefix, job_id), L.numbers.text(since))
end
