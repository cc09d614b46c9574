-- begin_again: an ended flow runs again, in part or as a whole.
L.begin_again = {}

-- Returns nil when the flow may run again, its state when there is nothing to do, or an error.
local function refusal(keys, args, allowed)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then
    return L.record.not_found(args[2])
  end
  local superseded = L.generations.refusal(keys[1], args[2])
  if superseded or not allowed[state] then
    return superseded or state
  end
  local expired = L.retain.refusal(keys[1], args[2])
  if expired then
    return expired
  end
  -- Cancelled while it was being staged: the missing nodes cannot run, and the others are not the whole flow.
  if redis.call('HLEN', keys[1] .. ':nodes') < L.numbers.int(redis.call('HGET', keys[1], 'total'), 0) then
    return state
  end
  return nil
end

-- Sets the flow running with the mark, does the first slice and returns the state.
local function start(keys, args, mark, value, event)
  local home, now = L.record.home(keys[1], args[2]), tonumber(args[1])
  local state = redis.call('HGET', keys[1], 'state')
  redis.call('HDEL', keys[1], 'cancel', 'reason', 'finished_at')
  redis.call('HSET', keys[1], 'state', 'running', mark, value)
  L.index.moved(home, args[2], state, 'running', now)
  redis.call('SADD', home .. 'gmo:todo', args[2])
  L.due.flow(home, args[2], now)
  L.generations.emit(home, event, args[2])
  L.advance.slice(home, args[2], now)
  return redis.call('HGET', keys[1], 'state')
end

L.begin_again.refusal = refusal
L.begin_again.start = start
