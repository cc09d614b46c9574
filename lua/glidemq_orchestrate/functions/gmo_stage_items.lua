-- gmo_stage_items: write chunks of the items of an array node that is staged, in a flow or in an addition to one.
-- KEYS  1 job hash of the array   2 flow hash
-- ARGS  1 now_ms (unused)   2 digest of all items, as in the definition of the array   3 name of the node; then per
--       chunk: its number, its items (a line of JSON each)
-- REPLY integer: 1, or 0 when the node may already run, is carried over (another client that begins the same
--       generation has staged it so), or was removed at the end of the retention. Then nothing was changed
-- ERROR GMO_FLOW_INCOMPLETE (the node is not staged), GMO_FLOW_CONFLICT (it has other items). Nothing was changed.
-- EFFECTS the chunks are stored. Idempotent.
local function stage_items(keys, args)
  local prefix, job_id = keys[1]:match('^(.*:)job:([^:]+)$')
  local v = redis.call('HMGET', keys[1], 'state', 'gmo:array')
  if not v[1] and (redis.call('HEXISTS', keys[2] .. ':nodes', args[3]) == 1
    or redis.call('HEXISTS', keys[2], 'expired_at') == 1) then
    return 0
  elseif not v[2] then
    return redis.error_reply('GMO_FLOW_INCOMPLETE the array ' .. job_id .. ' is not staged')
  elseif cjson.decode(v[2]).items ~= args[2] then
    return redis.error_reply('GMO_FLOW_CONFLICT the array ' .. job_id .. ' has other items')
  elseif v[1] ~= 'waiting-children' then
    return 0
  end
  redis.call('HSET', prefix .. 'gmo:array:' .. job_id .. ':items', unpack(args, 4))
  return 1
end

redis.register_function('gmo_stage_items', stage_items)
