-- gmo_flow_status: return the record of a flow, in constant time.
-- KEYS  1 flow hash          ARGS  1 now_ms (unused)  2 flow id
-- REPLY flat array of the record's fields      ERROR GMO_FLOW_NOT_FOUND
local function flow_status(keys, args)
  local fields = redis.call('HGETALL', keys[1])
  if #fields == 0 then
    return L.record.not_found(args[2])
  end
  return fields
end

redis.register_function { function_name = 'gmo_flow_status', callback = flow_status, flags = { 'no-writes' } }
