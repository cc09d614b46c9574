-- gmo_take_over_messages: begin messages of silent workers of a subscription.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 subscription  3 consumer  4 lock_ms  5 times a message may stall  6 max number of messages
--       7 1 if one of them may be a suspect
-- REPLY rows as for gmo_begin_messages
-- ERROR NOGROUP
-- EFFECTS none for up to four seconds after a gap of lock_ms without any caller, see lease.lua. Else no more are taken
--       than are begun. The loss of a worker counts against messages it had begun, see parts/lost_messages.lua; a
--       message that stalled too often fails in this subscription. A Node worker is alive while the job has heartbeats,
--       ours while it renews the entry.
-- EVENT stalled {subscription} or failed {failedReason, subscription}
local PAGE, OURS = 100, '^gmo%-'

-- Ours renew their entries: `idle` is the time since they did.
local function is_alive(h, consumer, job_id, lock_ms, idle)
  if consumer:find(OURS) then
    return idle < L.lease.duration(consumer, lock_ms)
  end
  local last = redis.pcall('HGET', h.prefix .. 'job:' .. job_id, 'lastActive')
  return type(last) == 'string' and h.now - L.numbers.int(last, 0) < lock_ms
end

local function take(h, row, lock_ms)
  local entry = redis.call('XRANGE', h.stream, row[1], row[1])[1]
  if not entry then
    redis.call('XACK', h.stream, h.group, row[1])
    return nil
  end
  local job_id, is_retry = L.handling.read_entry(entry[2])
  if not job_id then
    redis.call('XACK', h.stream, h.group, row[1])
  elseif not is_alive(h, row[2], job_id, lock_ms, row[3]) and L.lost_messages.judge(h, row[2]) then
    local is_fine, fields, tries = pcall(L.lost_messages.take_over, h, job_id, row[1], is_retry)
    if not is_fine then
      return { row[1], job_id, type(fields) == 'table' and fields.err or tostring(fields) }
    end
    return fields and { row[1], job_id, tries, fields } or nil
  end
  return nil
end

local function take_over(keys, args)
  local h, rows = L.handling.of(keys, args), {}
  local lock_ms, wanted = tonumber(args[4]), tonumber(args[6])
  h.lock_ms, h.most, h.lost, h.takes_suspect = lock_ms, tonumber(args[5]), {}, args[7] == '1'
  local may_end = L.lease.may_end(h.prefix, h.now, lock_ms)
  local silent = wanted > 0 and may_end and redis.call('XPENDING', h.stream, h.group, 'IDLE', lock_ms, '-', '+', PAGE) or {}
  for _, row in ipairs(silent) do
    if #rows >= wanted then
      break
    end
    rows[#rows + 1] = take(h, row, lock_ms)
  end
  return rows
end

redis.register_function { function_name = 'gmo_take_over_messages', callback = take_over, flags = { 'allow-oom' } }
