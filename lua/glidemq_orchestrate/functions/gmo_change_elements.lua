-- gmo_change_elements: end elements of an array without running them, or run ended ones again.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 what: alone or follow (they run again; nodes that follow an array that has ended rerun
--       only for follow), or completed, skipped or failed (how they end)   4 token of the request   5 1 if an element that
--       has not ended is an error when it is to run again; else it is ignored. more: it is ignored, and the array does
--       not end before the next call of this request, for at most 10 s   6 name of the array node   7 the result as JSON,
--       or the reason   8.. positions
-- REPLY {state of the flow, or busy: it has open work for gmo_advance_flow, and nothing was changed; then the positions
--       that this request has changed, now or before, if no later one has changed them}. Elements that already have the
--       requested end are not changed: failed ones, skipped ones, those with the same result.
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED, GMO_FLOW_EXPIRED, GMO_FLOW_INCOMPLETE, GMO_FLOW_ENDED, as gmo_change_nodes;
--       GMO_NODE_NOT_FOUND (no such array or element), GMO_NODE_NOT_ENDED, GMO_NODE_KEEPS (the results of the array were
--       removed). Nothing was changed.
-- EFFECTS an open array goes on, and ends if all of its elements have, or too many have failed. One that has ended opens
--   again, with the ends of its other elements; so does its flow. A worker that runs such an element alone loses its
--   lease; of several, its outcome of this one does not count.
-- EVENT flow.retried {flowId} on the events stream of the home queue if the flow had ended
local RERUNS = { alone = true, follow = true }
local text = L.numbers.text

-- The array of this name with the fields ref and is_open; or nil and an error reply.
local function find(key, name)
  local row = redis.call('HGET', key .. ':nodes', name)
  local queue, job_id
  if row then queue, job_id = L.stage.place(row) end
  local prefix = row and key:match('^(.*:){[^{}]*}:gmo:flow:') .. '{' .. queue .. '}:'
  local a = row and L.arrays.read(prefix, job_id)
  if not a then
    return nil, redis.error_reply('GMO_NODE_NOT_FOUND the flow has no array ' .. name)
  end
  a.ref = prefix .. job_id
  a.is_open = redis.call('SISMEMBER', key .. ':open', a.ref) == 1
  if redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:removed') == 1 then
    return nil, redis.error_reply('GMO_NODE_KEEPS the results of array ' .. name .. ' were removed. Fix: rerun the array')
  end
  return a
end

-- The changes to make, and the positions that this request has changed; or nil and an error reply.
local function plan(a, args)
  local what, token, name = args[3], args[4], args[6]
  local action, changes, changed = RERUNS[what] and 'again' or what, {}, {}
  for at = 8, #args do
    local element = tonumber(args[at])
    if element >= a.size then
      return nil, redis.error_reply('GMO_NODE_NOT_FOUND array ' .. name .. ' has ' .. text(a.size) .. ' elements, numbered from 0')
    end
    local is_done = redis.call('HGET', a.key .. ':changed', args[at]) == token
    local starts = RERUNS[what] and not a.is_open -- it runs when the array opens, even if it has no end
    local stays = what == 'failed' and not a.is_open -- it ended with its array
    if not is_done and not stays and (starts or L.element_changes.changes(a, element, action, args[7])) then
      changes[#changes + 1] = { element, action, args[7] }
      is_done = true
    elseif not is_done and RERUNS[what] and args[5] == '1' then
      return nil, redis.error_reply('GMO_NODE_NOT_ENDED element ' .. name .. '[' .. args[at] .. '] has not ended. Fix: wait until it has, or cancel it first')
    end
    if is_done then changed[#changed + 1] = args[at] end
  end
  return changes, changed
end

-- Makes the changes of an open array, which goes on or ends.
local function change_now(a, changes, now, has_more)
  local had_hold = a.holds > 0
  L.element_changes.hold(a, now, has_more)
  local have_ended = L.element_changes.apply(a, changes, now) or had_hold
  if not redis.call('ZSCORE', a.prefix .. 'gmo:arrays', a.id) then
    return -- its dependencies have not ended
  elseif not have_ended or not L.element_changes.end_if_done(a, now) then
    L.arrays.place(a, now)
    L.array_ends.tell(a, now)
  end
end

local function change_elements(keys, args)
  local key, now = keys[1], tonumber(args[1])
  local refused = L.begin_again.refusal_of_change(key, args[2])
  if refused then
    return refused
  end
  local a, problem = find(key, args[6])
  if a and not a.is_open and redis.call('HEXISTS', key, 'retry') == 1 then
    return { 'busy' } -- other nodes rerun, perhaps this one
  end
  local changes, changed
  if a then changes, changed = plan(a, args) end
  if not changes then
    return problem or changed
  end
  for _, change in ipairs(changes) do redis.call('HSET', a.key .. ':changed', text(change[1]), args[4]) end
  if a.is_open and (#changes > 0 or a.holds > 0) then
    change_now(a, changes, now, args[5] == 'more')
  end
  if a.is_open or #changes == 0 then
    return { redis.call('HGET', key, 'state'), unpack(changed) }
  end
  L.element_changes.hold(a, now, args[5] == 'more')
  L.element_changes.note(a, changes)
  redis.call('SADD', key .. ':again', (args[3] == 'alone' and 'alone' or 'follow') .. '\n' .. a.ref)
  return { L.begin_again.start(key, args[2], 'again', now), unpack(changed) }
end

redis.register_function { function_name = 'gmo_change_elements', callback = change_elements, flags = { 'allow-oom' } }
