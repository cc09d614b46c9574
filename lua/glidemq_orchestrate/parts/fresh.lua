-- fresh: a rerun node begins like a new one; nothing from its last run affects it.
L.fresh = {}

-- jobs/job_hash.py has the same list (OF_ONE_RUN), for servers without these functions.
local OF_ONE_RUN = { 'activeSource', 'fallbackIndex', 'gmo:accepted', 'gmo:begun', 'gmo:end', 'gmo:entry',
  'gmo:failure_group', 'gmo:lost', 'gmo:messages', 'gmo:published', 'gmo:ran', 'gmo:skipped', 'gmo:suspect', 'gmo:token', 'gmo:unhandled', 'gmo:until', 'gmo:waited',
  'lastActive', 'processedOn', 'progress', 'returnvalue', 'revoked', 'signals', 'stalledCount',
  'suspendReason', 'suspendTimeout', 'suspendedAt', 'tpmTokens' }

-- The delay of the last run may be a backoff or one set by its handler: restores the delay of the options.
local function restore_delay(key)
  local v = redis.call('HMGET', key, 'delay', 'opts')
  if v[1] and v[1] ~= '0' then
    local is_json, options = pcall(cjson.decode, v[2] or '')
    local own = is_json and type(options) == 'table' and options.delay or 0
    redis.call('HSET', key, 'delay', L.numbers.text(math.max(L.numbers.int(own, 0), 0)))
  end
end

-- Makes the job of a node wait again, without results and marks of its last run. Its log, outputs and messages stay.
-- The field gmo:round distinguishes its runs: it grows by one here, and on the portable path to the number of the
-- round.
function L.fresh.reset(prefix, job_id, job, now)
  local key = prefix .. 'job:' .. job_id
  L.arrays.reopen(prefix, job_id, job.state, now)
  redis.call('ZREM', prefix .. 'failed', job_id)
  redis.call('ZREM', prefix .. 'completed', job_id)
  L.start_over.reset(prefix, job_id, job, now, 'waiting-children')
  L.children.forget(prefix, job_id)
  redis.call('HDEL', key, unpack(OF_ONE_RUN))
  redis.call('UNLINK', prefix .. 'signals:' .. job_id)
  redis.call('ZREM', prefix .. 'gmo:awaiting', job_id)
  restore_delay(key)
  local run = math.max(L.numbers.int(redis.call('HGET', key, 'gmo:round'), 0), 0) + 1
  redis.call('HSET', key, 'gmo:round', L.numbers.text(run))
end
