-- gmo_note_history: add a line to the history of a job that records one.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 kind  4 text  5 1 = from now on the job records a history
-- REPLY integer: 1, or 0 for a missing job, and nothing was changed
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS not idempotent.
local function note_history(keys, args)
  local now, kind = tonumber(args[1]), args[3]
  if not now or not kind or not string.find(kind, '^[%l-]+$') or not args[4] then
    return redis.error_reply('GMO_BAD_CALL gmo_note_history: the arguments are not valid')
  elseif redis.call('HEXISTS', keys[1], 'state') == 0 then
    return 0
  end
  L.history.note(keys[1], now, kind, args[4], args[5] == '1')
  return 1
end

redis.register_function { function_name = 'gmo_note_history', callback = note_history, flags = { 'allow-oom' } }
