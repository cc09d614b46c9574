-- gmo_begin_generation: start a completely staged generation of a flow in place of the current one.
-- KEYS  1 stream of the generations   2 record of the previous generation   3 record of the new one
-- ARGS  1 now_ms   2 stored id of the previous one   3 stored id of the new one   4 digest of the new one
--       5 how it began: restart or retry_failed   6 the number of extensions of the previous one that the new one
--       includes; '' if it need not include any
-- REPLY state of the new generation
-- ERROR GMO_GENERATION_TAKEN (the previous one is no longer current, or was extended again), GMO_FLOW_NOT_FOUND,
--       GMO_FLOW_CONFLICT, GMO_FLOW_INCOMPLETE (nodes are missing). Nothing was changed.
-- EFFECTS the new one is current and running. The previous one is superseded: it is cancelled if it runs, and no call
--       changes it afterwards. gmo_advance_flow ends it, adopts carried-over nodes and then releases the first nodes.
--       Idempotent: if the new one is already current, nothing.
local function begin_generation(keys, args)
  local before, new, home = args[2], args[3], L.record.home(keys[2], args[2])
  local current = L.generations.current(keys[1], new)
  if current == new then
    return redis.call('HGET', keys[3], 'state') or L.record.not_found(new)
  elseif current ~= before then
    return redis.error_reply('GMO_GENERATION_TAKEN ' .. current .. ' is the current generation')
  end
  local refused = L.start.refusal(keys[3], new, args[4])
  if refused then
    return refused
  elseif redis.call('EXISTS', keys[2]) == 0 then
    return L.record.not_found(before)
  elseif args[6] ~= '' and (redis.call('HGET', keys[2], 'extensions') or '0') ~= args[6] then
    return redis.error_reply('GMO_GENERATION_TAKEN ' .. before .. ' was extended meanwhile')
  end
  L.generations.begin(home, before, new, args[5], tonumber(args[1]))
  return redis.call('HGET', keys[3], 'state')
end

redis.register_function('gmo_begin_generation', begin_generation)
