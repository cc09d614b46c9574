-- glidemq_clean: delete old finished jobs.
-- KEYS  1 completed or failed  2 events  3 id counter
-- ARGS  1 cutoff ms  2 limit (<= 0: nothing)
-- REPLY array of the ids, oldest first
-- EVENT cleaned, with the count as job id

local function clean(keys, args)
  local cutoff, limit = L.numbers.int(args[1], nil), L.numbers.int(args[2], 0)
  if not cutoff or limit <= 0 then
    return {}
  end
  local prefix = L.hashes.prefix(keys[3], 'id')
  local ids = redis.call('ZRANGEBYSCORE', keys[1], '-inf', cutoff, 'LIMIT', 0, limit)
  for _, job_id in ipairs(ids) do
    L.jobs.unlink(prefix, job_id)
  end
  L.hashes.zrem_all(keys[1], ids)
  if #ids > 0 then
    L.events.emit(keys[2], 'cleaned', L.numbers.text(#ids))
  end
  return ids
end

redis.register_function({ function_name = 'glidemq_clean', callback = clean, flags = { 'allow-oom' } })
