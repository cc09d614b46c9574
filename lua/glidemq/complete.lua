-- glidemq_complete: finish a job successfully.
-- KEYS  1 stream  2 completed  3 events  4 job hash  5 completed metrics
--       6 parent deps  7 parent hash  8 parent stream  9 parent events (6 to 9 together or not at all)
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 returnvalue  4 now  5 group  6 removeMode  7 removeCount
--       8 removeAge (s)  9 depsMember  10 parentId  11 broadcast
-- REPLY 1
-- ERROR unexpected key format
-- EVENT completed {returnvalue}; active of a parent that became ready

local M = {}
L.complete = M

-- The argument of `L.parents.notify`, or nil when the job names no parent.
function M.parent(keys, member, parent_id)
  if not keys[9] or (member or '') == '' or (parent_id or '') == '' then
    return nil
  end
  return {
    parent_id = parent_id, member = member,
    deps_key = keys[6], job_key = keys[7], stream_key = keys[8], events_key = keys[9],
  }
end

local function complete(keys, args)
  local suffix = 'job:' .. args[1]
  if string.sub(keys[4] or '', -#suffix) ~= suffix then
    return redis.error_reply('ERR glidemq_complete: unexpected key format: ' .. tostring(keys[4]))
  end
  local int = L.numbers.int
  L.finish.complete({
    prefix = L.hashes.prefix(keys[4], suffix), job_id = args[1], entry_id = args[2] or '',
    returnvalue = args[3], now = int(args[4], 0), group = args[5], remove_mode = args[6],
    remove_count = int(args[7], 0), remove_age = int(args[8], 0),
    parent = M.parent(keys, args[9], args[10]), broadcast = L.numbers.flag(args[11]),
  })
  return 1
end

redis.register_function({
  function_name = 'glidemq_complete', callback = complete, flags = { 'allow-oom' },
})
