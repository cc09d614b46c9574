-- gmo_flow_states: return the states of a page of the nodes of a flow, a letter each, in the order in which they joined.
-- KEYS  1 flow hash
-- ARGS  1 now_ms (unused)  2 flow id  3 position ('0' first)  4 page size
-- REPLY {next position ('0' = end), the names of the nodes, a line each, and their letters as one text}
--       c completed, s skipped, f failed because of others, F failed by itself, a active, w waiting (also for its
--       place in a group), d delayed or prioritized, b waiting for dependencies, u suspended, ? none of these
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED. The reply is empty for a flow without the list of its nodes, as on the
--       portable path.
local LETTERS = { completed = 'c', active = 'a', waiting = 'w', ['group-waiting'] = 'w', delayed = 'd', prioritized = 'd',
  ['waiting-children'] = 'b', suspended = 'u' }
local CONSEQUENCES = { 'upstream ', 'cancelled: ' }

-- The letter of a node that is in the set of failed ones.
local function of_failed(job_key)
  local v = redis.pcall('HMGET', job_key, 'gmo:skipped', 'failedReason')
  if v.err then
    return '?'
  elseif v[1] then
    return 's'
  end
  for _, text in ipairs(CONSEQUENCES) do
    if v[2] and v[2]:sub(1, #text) == text then
      return 'f'
    end
  end
  return 'F'
end

-- The letter of an open node.
local function of_open(job_key)
  local state = redis.pcall('HGET', job_key, 'state')
  return type(state) == 'string' and LETTERS[state] or '?'
end

local function flow_states(keys, args)
  local key, at, limit = keys[1], tonumber(args[3]), tonumber(args[4])
  local expired = L.retain.refusal(key, args[2])
  if expired then
    return expired
  end
  local has_skipped = L.numbers.int(redis.call('HGET', key, 'skipped'), 0) > 0
  local page, names, refs, letters = redis.call('LRANGE', key .. ':order', at, at + limit - 1), {}, {}, {}
  for i, entry in ipairs(page) do names[i], refs[i] = L.order.split(entry) end
  local open, failed = {}, {}
  for first = 1, #refs, 1000 do
    local last = math.min(first + 999, #refs)
    for i, is in ipairs(redis.call('SMISMEMBER', key .. ':open', unpack(refs, first, last))) do open[first + i - 1] = is end
    for i, is in ipairs(redis.call('SMISMEMBER', key .. ':failed', unpack(refs, first, last))) do failed[first + i - 1] = is end
  end
  for i, ref in ipairs(refs) do
    local prefix, job_id = L.record.split(ref)
    if open[i] == 1 then
      letters[i] = of_open(prefix .. 'job:' .. job_id)
    elseif failed[i] == 1 then
      letters[i] = of_failed(prefix .. 'job:' .. job_id)
    else
      letters[i] = has_skipped and redis.pcall('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:skipped') == 1 and 's' or 'c'
    end
  end
  local next = #page == limit and L.numbers.text(at + limit) or '0'
  return { next, table.concat(names, '\n'), table.concat(letters) }
end

redis.register_function { function_name = 'gmo_flow_states', callback = flow_states, flags = { 'no-writes' } }
