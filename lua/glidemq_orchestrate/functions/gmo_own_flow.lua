-- gmo_own_flow: add an owner to a flow, or renew its lease.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 name of the owner   4 its lapse: the ms without a renewal after which it is considered
--       dead   5 cancel or keep: what then happens to the flow if nobody else owns it
--       6 (optional) 0: only renew the owner; a flow that it does not own is not changed
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED
-- EFFECTS parts/owners.lua; a flow that is not running gets the owner when it starts; an ended one is not changed.
local ENDED = { completed = true, failed = true, cancelled = true }

local function own_flow(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then
    return L.record.not_found(args[2])
  end
  local refused = L.generations.refusal(keys[1], args[2])
  local may_own = args[6] ~= '0' or redis.call('HEXISTS', keys[1] .. ':owners', args[3]) == 1
  if not refused and not ENDED[state] and may_own then
    L.owners.add(L.record.home(keys[1], args[2]), args[2], args[3], args[4] .. '\n' .. args[5], tonumber(args[1]))
  end
  return refused or state
end

redis.register_function('gmo_own_flow', own_flow)
