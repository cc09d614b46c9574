-- gmo_note_flow: store a short text of the submitter with this generation of a flow.
-- KEYS  1 flow hash          ARGS  1 now_ms (unused)  2 flow id  3 text
-- REPLY 1
-- ERROR GMO_FLOW_NOT_FOUND
-- EFFECTS the field `note`, in any state and on both paths; the last text counts. It is removed with the record.
local function note_flow(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return L.record.not_found(args[2])
  end
  redis.call('HSET', keys[1], 'note', args[3])
  return 1
end

redis.register_function { function_name = 'gmo_note_flow', callback = note_flow, flags = { 'allow-oom' } }
