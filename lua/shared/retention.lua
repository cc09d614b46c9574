-- retention: how many finished jobs are kept. A node is removed with its flow, and a child stays as long as a job that
-- waited for it may read its result, no matter which retention applies.
--   <prefix>gmo:leaving              zset: "<completed or failed>\n<when it ended>\n<job id>" -> when to remove it
--   <prefix>gmo:passed:<set name>    score up to which all members of the set are needed

local M = {}
L.retention = M

local BATCH, SOON, LATE = 1000, 60000, 86400000
local ENDED = { completed = true, failed = true }
local OPTION = { completed = '"removeOnComplete":', failed = '"removeOnFail":' }

-- Whether this is an existing job that has not ended. A job in another slot cannot be read and counts as open.
local function is_open(prefix, job_id)
  local state = redis.pcall('HGET', prefix .. 'job:' .. job_id, 'state')
  return state and not ENDED[state] and true or false
end

-- Whether a parent of the job has not ended: the one of a tree, or one of a graph.
local function has_open_parent(prefix, job_id, parent_id, queue)
  if parent_id and queue and parent_id ~= '' and queue ~= '' then
    local start = string.match(prefix, '^(.*){[^{}]*}:$')
    if is_open((start or '') .. '{' .. queue .. '}:', parent_id) then
      return true
    end
  end
  for _, ref in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
    local base, id = string.match(ref, '^(.*:)([^:]*)$')
    if base and is_open(base, id) then
      return true
    end
  end
  return false
end

-- `node`: the job is removed with its flow; `child`: an open job may read its result; else nil.
function M.needed(prefix, job_id)
  local v = redis.pcall('HMGET', prefix .. 'job:' .. job_id, 'gmo:flow', 'parentId', 'parentQueue', 'opts')
  if v.err then
    return nil
  elseif v[1] or L.jobs.is_portable(v[4]) then
    return 'node'
  end
  return has_open_parent(prefix, job_id, v[2], v[3]) and 'child' or nil
end

-- Notes when to remove an ended job.
function M.leave(prefix, state, job_id, ended, due)
  redis.call('ZADD', prefix .. 'gmo:leaving', due, state .. '\n' .. L.numbers.text(ended) .. '\n' .. job_id)
end

-- Removes an ended job, or notes when to check again: the interval for a needed child doubles each time, so that many
-- of them cost little. Returns false if it stays.
function M.remove(prefix, state, job_id, ended, now)
  local needed = M.needed(prefix, job_id)
  if needed == 'child' then
    M.leave(prefix, state, job_id, ended, now + math.min(math.max(now - ended, SOON), LATE))
  end
  if needed then
    return false
  end
  L.jobs.unlink(prefix, job_id)
  redis.call('ZREM', prefix .. state, job_id)
  return true
end

-- Removes due jobs; returns how many were checked. A job that was retried since then stays.
function M.expire(prefix, now, most)
  local key = prefix .. 'gmo:leaving'
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)
  L.hashes.zrem_all(key, due)
  for _, member in ipairs(due) do
    local state, ended, job_id = string.match(member, '^(%a+)\n(%S+)\n(.*)$')
    local score = state and redis.call('ZSCORE', prefix .. state, job_id)
    if score and tonumber(score) == tonumber(ended) then
      M.remove(prefix, state, job_id, tonumber(ended), now)
    end
  end
  return #due
end

-- Removes members of the set in a page from `rank` on, the oldest first. If some stay, the next call begins after them.
local function remove_page(set_key, prefix, state, page, now)
  local last, has_kept = nil, false
  for i = 1, #page, 2 do
    local job_id, ended = page[i], tonumber(page[i + 1])
    local opts = redis.pcall('HGET', prefix .. 'job:' .. job_id, 'opts')
    local asked = type(opts) == 'string' and string.find(opts, OPTION[state], 1, true)
    local needed = M.needed(prefix, job_id)
    if not needed then
      L.jobs.unlink(prefix, job_id)
      redis.call('ZREM', set_key, job_id)
    elseif needed == 'child' and asked then
      M.remove(prefix, state, job_id, ended, now)
    end
    last, has_kept = ended, has_kept or needed ~= nil
  end
  if has_kept then
    redis.call('SET', prefix .. 'gmo:passed:' .. state, L.numbers.text(last))
  end
end

local function by_age(set_key, prefix, state, passed, oldest_kept, now)
  remove_page(set_key, prefix, state, redis.call('ZRANGEBYSCORE', set_key, passed or 0, oldest_kept, 'WITHSCORES',
    'LIMIT', 0, BATCH), now)
end

local function by_count(set_key, prefix, state, passed, count, now)
  local excess = redis.call('ZCARD', set_key) - count
  local first = passed and redis.call('ZCOUNT', set_key, '-inf', '(' .. passed) or 0
  if excess > first then
    local last = math.min(excess, first + BATCH) - 1
    remove_page(set_key, prefix, state, redis.call('ZRANGE', set_key, first, last, 'WITHSCORES'), now)
  end
end

-- glide-mq's own retention. mode `true`: this job in any case; `count`: all but the newest `count`; `age_count`: older
-- than `age` seconds, then by count; anything else keeps all. The job just finished counts like every other.
function M.apply(set_key, prefix, job_id, mode, count, age, now)
  local state = string.sub(set_key, #prefix + 1)
  if mode == 'true' then
    if M.needed(prefix, job_id) ~= 'node' then
      L.jobs.unlink(prefix, job_id)
      redis.call('ZREM', set_key, job_id)
    end
  elseif mode == 'count' or mode == 'age_count' then
    local passed = redis.call('GET', prefix .. 'gmo:passed:' .. state)
    if mode == 'age_count' and age > 0 then
      by_age(set_key, prefix, state, passed, now - age * 1000, now)
    end
    if count > 0 then
      by_count(set_key, prefix, state, passed, count, now)
    end
    M.expire(prefix, now, 10)
  end
end
