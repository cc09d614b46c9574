-- gmo_letter_written: remove the note of a job whose dead letter is written or not needed.
-- KEYS  1 <prefix>gmo:letters
-- ARGS  1 now_ms (unused)  2 job id  3 when it failed, from the note
-- REPLY 1, or 0 when there is a newer note or none: then nothing was changed
local function letter_written(keys, args)
  local found = redis.call('HGET', keys[1], args[2])
  if not found or found:match('^[^\n]*') ~= args[3] then
    return 0
  end
  return redis.call('HDEL', keys[1], args[2])
end

redis.register_function { function_name = 'gmo_letter_written', callback = letter_written, flags = { 'allow-oom' } }
