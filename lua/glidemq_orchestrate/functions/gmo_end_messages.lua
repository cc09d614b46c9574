-- gmo_end_messages: accept outcomes of messages from a worker of a subscription.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 subscription  3 consumer   then for each (at most 100): stream entry id, job id, kind, text, number,
--       number. The kinds: done (text: result JSON), fail (text: reason; attempts allowed, backoff in ms), pass (not for
--       this subscription; number: 1 for a retry of another one)
-- REPLY a word for each: ok, retrying, failed; stale = this worker does not hold the entry, and nothing was changed
-- EFFECTS the state of the message in this subscription; it ends when all have ended it, and then its retention
--       applies. A final failure is noted for a dead letter of this subscription. A repeat is refused as stale.
-- EVENT completed {returnvalue, subscription}, retrying or failed {failedReason, ..., subscription}
local MAX, WORDS = 100, 6

local function end_messages(keys, args)
  local h, verdicts = L.handling.of(keys, args), {}
  for at = 4, math.min(#args - WORDS + 1, 4 + WORDS * (MAX - 1)), WORDS do
    local first, second = L.numbers.int(args[at + 4], 0), L.numbers.int(args[at + 5], 0)
    local is_fine, verdict = pcall(L.handling.finish, h, { entry_id = args[at], job_id = args[at + 1], kind = args[at + 2],
      text = args[at + 3], allowed = first, backoff = second, is_retry = first == 1 })
    if not is_fine then -- its key is not a hash: it ends here
      redis.call('XACK', h.stream, h.group, args[at])
      verdict = L.jobs.bury(h.prefix, args[at + 1], h.now) and 'failed' or 'stale'
    end
    verdicts[#verdicts + 1] = verdict
  end
  return verdicts
end

redis.register_function { function_name = 'gmo_end_messages', callback = end_messages, flags = { 'allow-oom' } }
