-- glidemq_reclaimStalled: recover stream jobs with a silent worker.
-- KEYS  1 stream  2 events
-- ARGS  1 group  2 consumer that takes them  3 minIdle ms  4 maxStalledCount  5 now  6 failed set key
--       7 broadcast  8 lock duration of the worker in ms
-- REPLY integer: claimed entries that carried a job id
-- ERROR NOGROUP when stream or group is missing
-- EVENT stalled | failed {failedReason} | expired

local function reclaim_stalled(keys, args)
  local int = L.numbers.int
  return L.reclaim.stream({
    prefix = L.hashes.prefix(keys[1], 'stream'), events_key = keys[2], group = args[1], consumer = args[2],
    min_idle = int(args[3], 0), max_stalled = int(args[4], 1), now = int(args[5], 0), failed_key = args[6],
    broadcast = L.numbers.flag(args[7]), lock_duration = int(args[8], 0),
  })
end

redis.register_function({
  function_name = 'glidemq_reclaimStalled', callback = reclaim_stalled, flags = { 'allow-oom' },
})
