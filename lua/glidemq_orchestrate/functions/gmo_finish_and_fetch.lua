-- gmo_finish_and_fetch: accept outcomes of attempts, then start new ones, with one call for many jobs.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 consumer  4 max jobs to start (at most 100)  5 token of the attempts that start
--       6 mode: '' | again (instead of new jobs, those that this consumer started with this token)
--       7 max starts per window (0 = the setting of the queue)  8 window in ms, then the outcomes (see outcome.lua);
--       last, optional: how many of the jobs begin at once (by default all); the others are prefetched, see losses.lua;
--       and, if the worker knows arrays: JSON object, job name ('' = any other) -> how many elements it runs as a slice,
--       negative if it runs them all at once
-- REPLY {verdict per outcome, ids of flows that need gmo_advance_flow, rows of jobs that started, last stream entry,
--       last event, next due time or -1, limit that blocks jobs: '' | paused | concurrency | rate, errors of jobs that
--       could not start, when to check the first schedule, ms, or -1; -1 if no jobs were requested}
--       row: job id, entry id, processedOn, name, data, opts, attemptsMade, flow, node, signals, fallbackIndex, budgetKey,
--       flat array of the dependencies' results by name (nil: outside flows, or to be read with gmo_node_inputs),
--       number of this activation, which grows with each of the job, gmo:suspect (see losses.lua), '+' if prefetched,
--       which is then the last character of its token; of a slice of an array, whose other fields are those of the
--       array: {elements (see element_list.lua), how often each was tried ('' = never), items (a line each), or start and
--       step of the range}
--       The two positions and the due time are set when fewer jobs than requested started, else '' and -1: a client
--       that reads both streams from there misses nothing that makes a job ready.
-- EFFECTS those of glidemq_complete, glidemq_fail and so on; of gmo_expire_due; of glidemq_moveToActive. Outcomes are
--       accepted or refused one by one. A repeat refuses the accepted outcomes (stale) and starts further jobs;
--       mode `again` returns the jobs of a lost reply.
local BUDGET, DEADLINES, MAX_WANTED = 200, 2, 100

local function last_id(stream_key)
  local newest = redis.call('XREVRANGE', stream_key, '+', '-', 'COUNT', 1)[1]
  return newest and newest[1] or '0-0'
end

-- How many may still start in this window, the window's start and its count; nil without a limit.
local function rate_room(x, max, duration)
  if max <= 0 or duration <= 0 then
    return nil
  end
  local window = redis.call('HMGET', x.prefix .. 'rate', 'windowStart', 'count')
  local start, count = L.numbers.int(window[1], 0), L.numbers.int(window[2], 0)
  if x.now - start >= duration then
    start, count = x.now, 0
  end
  return math.max(max - count, 0), start, count
end

-- How many jobs may still be active by the limit of the queue; nil without a limit.
local function concurrency_room(x, limit)
  if limit <= 0 then
    return nil
  end
  local pending = redis.pcall('XPENDING', x.stream, x.group)
  local listed = L.numbers.int(redis.call('GET', x.prefix .. 'list-active'), 0) + L.turns.running(x.prefix)
  return math.max(limit - (pending.err and 0 or L.numbers.int(pending[1], 0)) - listed, 0)
end

-- Starts up to `count` jobs and slices; neither delays the other. Returns whether there were that many.
local function start_jobs(x, count, is_limited)
  if x.is_plain or not x.sizes or redis.call('EXISTS', x.prefix .. 'gmo:arrays') == 0 then
    return L.fetch.jobs(x, count)
  end
  x.sizes = is_limited and {} or cjson.decode(x.sizes)
  L.turns.fetch_first(x, count)
  L.fetch.jobs(x, #x.jobs + L.turns.half(x, count - #x.jobs))
  return L.turns.fetch(x, count) or L.fetch.jobs(x, count)
end

-- Starts up to `wanted` jobs as far as the queue allows; returns whether it had that many, which limit blocked jobs,
-- and until when.
local function fetch(x, wanted, max, duration)
  local int = L.numbers.int
  x.is_plain = L.due_work.is_plain(x.prefix)
  if not x.is_plain then
    local _, flows = L.due_work.slice(x.prefix, x.now, DEADLINES)
    for _, flow_id in ipairs(flows) do
      x.flows[#x.flows + 1] = flow_id
    end
    x.schedules = L.scheduler.next(x.prefix)
  end
  local meta = redis.call('HMGET', x.prefix .. 'meta', 'paused', 'globalConcurrency', 'rateLimitMax', 'rateLimitDuration')
  if meta[1] == '1' then
    return false, 'paused', -1
  end
  if int(meta[3], 0) > 0 then
    max, duration = int(meta[3], 0), int(meta[4], 0)
  end
  local held, until_ms, count = '', -1, wanted
  local room = concurrency_room(x, int(meta[2], 0))
  if room and room < count then
    held, count = 'concurrency', room
  end
  local starts, start, used = rate_room(x, max, duration)
  if starts and starts < count then
    held, count, until_ms = 'rate', starts, start + duration
  end
  local is_full = count > 0 and start_jobs(x, count, room or starts)
  if starts and #x.jobs > 0 then
    redis.call('HSET', x.prefix .. 'rate', 'windowStart', L.numbers.text(start), 'count', used + #x.jobs)
  end
  return is_full and held == '', (is_full or count == 0) and held or '', until_ms
end

-- Accepts or refuses each outcome and returns the verdicts; one that raises does not stop the others.
local function accept(x, args)
  local verdicts, last = {}, #args - (#args - 8) % L.outcome.WORDS
  for at = 10, last, L.outcome.WORDS do
    x.reported[#x.reported + 1] = args[at]
  end
  for at = 9, last, L.outcome.WORDS do
    local outcome = L.outcome.read(args, at)
    local is_fine, verdict = pcall(L.outcome.accept, x, outcome)
    if not is_fine then
      verdict = 'error ' .. (type(verdict) == 'table' and verdict.err or tostring(verdict))
    end
    verdicts[#verdicts + 1] = verdict
  end
  L.gathered.flush(x)
  L.gathered.remove_entries(x)
  for i, verdict in ipairs(x.unlisted and verdicts or {}) do
    verdicts[i] = L.gathered.verdict(x, x.reported[i], verdict)
  end
  if x.completed > 0 then
    L.metrics.record(x.prefix .. 'metrics:completed', x.now, x.took, x.completed)
  end
  return verdicts
end

-- The ids without '' and duplicates.
local function distinct(flows)
  local seen, ids = { [''] = true }, {}
  for _, id in ipairs(flows) do
    if not seen[id] then
      seen[id], ids[#ids + 1] = true, id
    end
  end
  return ids
end

local function finish_and_fetch(keys, args)
  local now, wanted = tonumber(args[1]), math.min(tonumber(args[4]) or 0, MAX_WANTED)
  local more = (#args - 8) % L.outcome.WORDS
  if not now or more > 2 or (more > 0 and not tonumber(args[#args - more + 1])) then
    return redis.error_reply('GMO_BAD_CALL gmo_finish_and_fetch got ' .. #args .. ' arguments')
  end
  local prefix = L.hashes.prefix(keys[1], 'stream')
  local x = { prefix = prefix, events = prefix .. 'events', stream = keys[1], now = now, now_text = L.numbers.text(now),
    group = args[2], consumer = args[3], token = args[5], jobs = {}, flows = {}, entries = {}, troubles = {},
    completed = 0, took = 0, schedules = -1, spent = 0, budget = BUDGET, ended = {}, listed = {}, reported = {},
    starts = more > 0 and tonumber(args[#args - more + 1]) or nil, sizes = more == 2 and args[#args] or nil,
    fetches = more == 2 and wanted > 0 and args[6] ~= 'again' }
  local verdicts = L.tags.together(accept, x, args)
  local is_full, held, until_ms = true, '', -1
  if args[6] == 'again' then
    L.fetch.again(x)
  elseif wanted > 0 then
    is_full, held, until_ms = fetch(x, wanted, tonumber(args[7]) or 0, tonumber(args[8]) or 0)
  end
  if is_full then
    return { verdicts, distinct(x.flows), x.jobs, '', '', -1, held, x.troubles, x.schedules }
  end
  local due = L.due_work.next(x.prefix, now)
  if until_ms >= 0 and (due < 0 or until_ms < due) then
    due = until_ms
  end
  return { verdicts, distinct(x.flows), x.jobs, last_id(x.stream), last_id(x.events), due, held, x.troubles,
    x.schedules }
end

redis.register_function {
  function_name = 'gmo_finish_and_fetch', callback = finish_and_fetch, flags = { 'allow-oom' },
}
