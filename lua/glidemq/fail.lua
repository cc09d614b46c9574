-- glidemq_fail: retry a job with backoff, or fail it for good.
-- KEYS  1 stream  2 failed  3 scheduled  4 events  5 job hash  6 failed metrics
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 reason  4 now  5 maxAttempts  6 backoff ms  7 group
--       8 removeMode  9 removeCount  10 removeAge (s)  11 broadcast
-- REPLY retrying | failed
-- ERROR unexpected key format
-- EVENT retrying {failedReason, attemptsMade, delay} | failed {failedReason}

local function fail(keys, args)
  local suffix = 'job:' .. args[1]
  if string.sub(keys[5] or '', -#suffix) ~= suffix then
    return redis.error_reply('ERR glidemq_fail: unexpected key format: ' .. tostring(keys[5]))
  end
  local int = L.numbers.int
  local outcome = L.finish.fail({
    prefix = L.hashes.prefix(keys[5], suffix), job_id = args[1], entry_id = args[2] or '', reason = args[3],
    now = int(args[4], 0), max_attempts = int(args[5], 0), backoff = int(args[6], 0), group = args[7],
    remove_mode = args[8], remove_count = int(args[9], 0), remove_age = int(args[10], 0),
    broadcast = L.numbers.flag(args[11]),
  })
  return outcome
end

redis.register_function({ function_name = 'glidemq_fail', callback = fail, flags = { 'allow-oom' } })
