-- glidemq_searchByName: the ids of jobs with a name.
-- KEYS  1 zset or stream
-- ARGS  1 `zset` or `stream`  2 name  3 limit  4 queue prefix with its colon
-- REPLY array of ids, in the order of the key

local function search_by_name(keys, args)
  local name, limit, prefix = args[2], L.numbers.int(args[3], 100), args[4] or ''
  local found = {}
  local function visit(job_id)
    if #found < limit and job_id and redis.call('HGET', prefix .. 'job:' .. job_id, 'name') == name then
      found[#found + 1] = job_id
    end
    return #found >= limit
  end
  if args[1] == 'stream' then
    L.stream.each(keys[1], function(_, job_id)
      return visit(job_id)
    end)
  elseif args[1] == 'zset' then
    for _, job_id in ipairs(redis.call('ZRANGE', keys[1], 0, -1)) do
      if visit(job_id) then
        break
      end
    end
  end
  return found
end

redis.register_function({
  function_name = 'glidemq_searchByName', callback = search_by_name, flags = { 'allow-oom' },
})
