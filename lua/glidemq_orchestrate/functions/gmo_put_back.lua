-- gmo_put_back: requeue a node in the stream that was found nowhere else.
-- KEYS  1 job hash  2 stream
-- ARGS  1 now_ms (unused)  2 job id  3 trace from gmo_check_open  4 entry id that will not be delivered, or ''
-- REPLY 1, or 0 when the job has changed since, or is in one of the lists: then nothing was changed
local function put_back_lost(keys, args)
  local prefix = keys[1]:sub(1, #keys[1] - #('job:' .. args[2]))
  if L.open_nodes.trace(keys[1]) ~= args[3] then
    return 0
  end
  for _, list in ipairs({ 'lifo', 'priority' }) do
    if redis.call('LPOS', prefix .. list, args[2], 'MAXLEN', L.open_nodes.LIST_SEARCH) then
      return 0
    end
  end
  L.stream.ack(keys[2], 'workers', args[4], false)
  L.open_nodes.put_back(prefix, args[2])
  return 1
end

redis.register_function { function_name = 'gmo_put_back', callback = put_back_lost, flags = { 'allow-oom' } }
