-- gmo_tagged_jobs: a page of the jobs with a tag, those that have had it longest first.
-- KEYS  1 id counter
-- ARGS  1 now_ms  2 tag  3 offset  4 max jobs (at most 200)
-- REPLY {number of jobs with the tag, job ids}
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS jobs of the page that another library has removed are taken off the list, and not in the reply.
local MAX_JOBS, ROUNDS = 200, 5

-- Returns the page, and the jobs of it that do not exist.
local function read(prefix, tag, first, count)
  local found, missing = {}, {}
  for _, job_id in ipairs(redis.call('ZRANGE', prefix .. 'qx:tag:' .. tag, first, first + count - 1)) do
    local list = redis.pcall('HEXISTS', prefix .. 'job:' .. job_id, 'state') == 0 and missing or found
    list[#list + 1] = job_id
  end
  return found, missing
end

local function tagged_jobs(keys, args)
  local tag, first, count = args[2], tonumber(args[3]), tonumber(args[4])
  if not first or not count or first < 0 or count < 0 or count > MAX_JOBS or keys[1]:sub(-3) ~= ':id' then
    return redis.error_reply('GMO_BAD_CALL gmo_tagged_jobs: the arguments are not valid')
  end
  local prefix, found = L.hashes.prefix(keys[1], 'id'), {}
  for _ = 1, ROUNDS do
    local missing
    found, missing = read(prefix, tag, first, count)
    L.tags.delist(prefix, tag, missing)
    if #missing == 0 then
      break
    end
  end
  return { redis.call('ZCARD', prefix .. 'qx:tag:' .. tag), found }
end

redis.register_function('gmo_tagged_jobs', tagged_jobs)
