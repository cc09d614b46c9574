-- glidemq_moveToActive: activate a fetched job, unless its group, its age or a revocation forbids it.
-- KEYS  1 job hash  2 stream (optional: without it nothing is acknowledged)
-- ARGS  1 now  2 entryId ('' = from a list)  3 group  4 jobId  5 broadcast
-- REPLY flat fields of the job, or a status: '' (no such job), REVOKED, EXPIRED, GROUP_ORDERED, GROUP_FULL,
--       GROUP_TOKEN_LIMITED, GROUP_RATE_LIMITED, ERR:COST_EXCEEDS_CAPACITY
--
-- glidemq_deferActive: put a fetched job back at the end of the stream.
-- KEYS  1 stream  2 job hash  3 list-active (optional)
-- ARGS  1 jobId  2 entryId  3 group  4 broadcast
-- REPLY 1, or 0 when the job is missing

local function move_to_active(keys, args)
  local job_id = args[4] or ''
  if job_id == '' then
    job_id = string.match(keys[1], ':job:([^:]+)$') or ''
  end
  local can_ack = (keys[2] or '') ~= '' and (args[3] or '') ~= ''
  local status, fields = L.activate.job({
    prefix = L.hashes.prefix(keys[1], 'job:' .. job_id), job_id = job_id, now = L.numbers.int(args[1], 0),
    entry_id = can_ack and args[2] or '', group = args[3], broadcast = L.numbers.flag(args[5]),
  })
  return status or fields
end

local function defer_active(keys, args)
  return L.finish.defer({
    prefix = L.hashes.prefix(keys[1], 'stream'), job_id = args[1], entry_id = args[2] or '', group = args[3],
    broadcast = L.numbers.flag(args[4]),
  })
end

redis.register_function({
  function_name = 'glidemq_moveToActive', callback = move_to_active, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_deferActive', callback = defer_active, flags = { 'allow-oom' },
})
