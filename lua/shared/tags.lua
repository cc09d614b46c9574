-- tags: words by which jobs are found.
--   job:<id>                   its field gmo:tags: JSON list of its tags; the first ones come from `tags` of its options
--   <prefix>qx:tag:<tag>       zset: job id -> when it got the tag
--   <prefix>qx:tags            zset: tag -> how many jobs have it
-- A count is always that of its list, so no order of calls can make it wrong or negative. Jobs that another library
-- removes stay in the lists until somebody reads them, or until cleanup finds them.

local M = {}
L.tags = M

local MAX_TAGS, MAX_LENGTH = 32, 256

local function recount(prefix, tag)
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

-- Puts at most 1000 jobs into the lists of the same tags.
function M.list(prefix, job_ids, tags, now)
  local members = {}
  for i, job_id in ipairs(job_ids) do
    members[2 * i - 1], members[2 * i] = now, job_id
  end
  for _, tag in ipairs(tags) do
    local added = redis.call('ZADD', prefix .. 'qx:tag:' .. tag, 'NX', unpack(members))
    if added > 0 then
      redis.call('ZADD', prefix .. 'qx:tags', 'INCR', added, tag)
    end
  end
end

-- The tags of a job.
function M.of(prefix, job_id)
  local text = redis.pcall('HGET', prefix .. 'job:' .. job_id, 'gmo:tags')
  local is_json, found = pcall(cjson.decode, type(text) == 'string' and text or '[]')
  return is_json and valid(found) or {}
end

local function store(prefix, job_id, tags)
  if #tags > 0 then
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:tags', cjson.encode(tags))
  else
    redis.call('HDEL', prefix .. 'job:' .. job_id, 'gmo:tags')
  end
end

-- The tags in the last options: jobs that are added together often have the same.
local last = { opts = '', tags = {}, text = '' }

-- The tags in the options of a new job, and the text of its field; nil without any.
function M.of_options(opts)
  if not string.find(opts, '"tags":[', 1, true) and not string.find(opts, '"tags": [', 1, true) then
    return nil
  elseif opts ~= last.opts then
    local is_json, options = pcall(cjson.decode, opts)
    local tags = valid(is_json and type(options) == 'table' and options.tags)
    last = { opts = opts, tags = tags, text = #tags > 0 and cjson.encode(tags) or '' }
  end
  if #last.tags > 0 then
    return last.tags, last.text
  end
end

-- The same for a job to be written (jobs.lua); the text goes to its field tags_text.
function M.of_new(job)
  local tags, text = M.of_options(job.opts)
  job.tags_text = text
  return tags
end

-- Puts a new job into the lists of its tags; or into its list `tagged`, whose owner then calls M.list for many jobs.
function M.enter(job, tags)
  if job.tagged then
    job.tagged[#job.tagged + 1] = job.id
  else
    M.list(job.prefix, { job.id }, tags, job.timestamp)
  end
end

-- Gives a new job the tags in its options, if any.
function M.adopt(prefix, job_id, opts, now)
  local tags, text = M.of_options(opts)
  if tags then
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:tags', text)
    M.list(prefix, { job_id }, tags, now)
  end
end

-- Adds tags to an existing job and returns all its tags; nil, and nothing was changed, if they are more than 32.
function M.add(prefix, job_id, tags, now)
  local all, seen = M.of(prefix, job_id), {}
  for _, tag in ipairs(all) do
    seen[tag] = true
  end
  for _, tag in ipairs(tags) do
    if not seen[tag] then
      seen[tag], all[#all + 1] = true, tag
    end
  end
  if #all > MAX_TAGS then
    return nil
  end
  store(prefix, job_id, all)
  M.list(prefix, { job_id }, all, now)
  return all
end

-- Takes tags off an existing job and returns the others. Tags that it does not have are ignored.
function M.take_off(prefix, job_id, tags)
  local removed, rest = {}, {}
  for _, tag in ipairs(tags) do
    removed[tag] = true
  end
  for _, tag in ipairs(M.of(prefix, job_id)) do
    if not removed[tag] then
      rest[#rest + 1] = tag
    end
  end
  store(prefix, job_id, rest)
  for tag in pairs(removed) do
    M.delist(prefix, tag, { job_id })
  end
  return rest
end

-- Removes jobs from the list of a tag.
function M.delist(prefix, tag, job_ids)
  if #job_ids > 0 then
    redis.call('ZREM', prefix .. 'qx:tag:' .. tag, unpack(job_ids))
    recount(prefix, tag)
  end
end

-- Removes a job, which is about to be removed, from all lists. The field stays as long as its hash.
function M.forget(prefix, job_id)
  for _, tag in ipairs(M.of(prefix, job_id)) do
    M.delist(prefix, tag, { job_id })
  end
end

-- Lists a job again that was removed, except for its definition.
function M.relist(prefix, job_id)
  local since = L.numbers.int(redis.call('HGET', prefix .. 'job:' .. job_id, 'timestamp'), 0)
  M.list(prefix, { job_id }, M.of(prefix, job_id), since)
end
