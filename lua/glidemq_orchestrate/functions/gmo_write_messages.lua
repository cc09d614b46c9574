-- gmo_write_messages: append messages of an attempt to the stream of its job.
-- KEYS  1 job hash   2 stream of the messages of the job
-- ARGS  1 now_ms, proof, 7 ms for which the stream is kept   8 number of the first message, from 1 in each attempt, then
--       texts (at most 100)
-- REPLY integer: the stored messages of this attempt. If fewer than sent, the server has lost earlier ones.
-- ERROR GMO_STALE
-- EFFECTS an entry {attempt, number, text} for each message in sequence; the field gmo:messages of the job has the
--       number of messages and the attempt. When its result is accepted this becomes gmo:accepted (outcome.lua).
--       Idempotent: existing messages are not appended again.
local function write_messages(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  local attempt, count = L.lease.attempt(args[5], args[6]), 0
  local written = redis.call('HGET', keys[1], 'gmo:messages')
  local known, of = (written or ''):match('^(%d+) (.*)$')
  if of == attempt then
    count = tonumber(known)
  end
  for i = 9, #args do
    if tonumber(args[8]) + i - 9 == count + 1 then
      count = count + 1
      redis.call('XADD', keys[2], '*', 'attempt', attempt, 'number', L.numbers.text(count), 'text', args[i])
    end
  end
  redis.call('HSET', keys[1], 'gmo:messages', L.numbers.text(count) .. ' ' .. attempt)
  redis.call('PEXPIRE', keys[2], args[7])
  return count
end

redis.register_function { function_name = 'gmo_write_messages', callback = write_messages, flags = { 'allow-oom' } }
