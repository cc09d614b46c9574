-- owners: processes or tasks that keep a running flow alive. An owner has one lease for all its flows of a home queue,
-- so that one small call renews it. A lease is named "<lapse in ms>:<name of the owner>".
--   <flow>:owners            hash: name of an owner -> "<lapse in ms>\n<cancel or keep>"; and the last of them that
--                            lapsed, while others own it; until the flow has ended
--   <home>gmo:owners         zset of the leases: when they were last renewed; clients renew them by ZADD XX
--   <home>gmo:owned:<lease>  set of the ids of the running flows of an owner
--   <home>gmo:due            owner\n<lease>: whether it was silent for half the lapse; silent\n<lease>: whether it
--                            still is
-- Two checks, half a lapse apart: if the server itself was down, live owners renew in between.
L.owners = {}
local SLICE = 20
local LAST = '' -- the last lapsed owner, "<when the lease ended>\n<last renewal>\n<lapse in s>\n<choice>\n<name>"

-- A time in ms since the epoch as readable text, in UTC. Years start in March, so that leap days come last: the
-- formulas of Howard Hinnant's "chrono-compatible low-level date algorithms".
local function moment(ms)
  local floor, seconds = math.floor, math.floor(ms / 1000)
  local days = floor(seconds / 86400) + 719468
  local era = floor(days / 146097)
  local doe = days - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local rest = seconds % 86400
  return string.format('%04d-%02d-%02d %02d:%02d:%02d UTC', year, month, doy - floor((153 * mp + 2) / 5) + 1,
    floor(rest / 3600), floor(rest % 3600 / 60), rest % 60)
end

local function lease_of(name, text)
  return text:match('^%d+') .. ':' .. name
end

local function lapse_of(lease)
  return L.numbers.int(lease:match('^%d+'), 0)
end

local function half(lapse)
  return math.floor(lapse / 2)
end

local function check_at(home, kind, lease, at)
  redis.call('ZADD', home .. 'gmo:due', at, kind .. '\n' .. lease)
end

-- Adds a running flow to an owner, and renews its lease.
local function give(home, flow_id, lease, now)
  redis.call('SADD', home .. 'gmo:owned:' .. lease, flow_id)
  redis.call('ZADD', home .. 'gmo:owners', 'GT', now, lease)
  check_at(home, 'owner', lease, now + half(lapse_of(lease)))
end

-- Removes a flow from an owner, whose lease ends with its last flow.
local function take(home, flow_id, lease)
  local owned = home .. 'gmo:owned:' .. lease
  redis.call('SREM', owned, flow_id)
  if redis.call('EXISTS', owned) == 0 then
    redis.call('ZREM', home .. 'gmo:owners', lease)
  end
end

-- Records an owner of a flow. text: its lapse and its choice. The lease begins when the flow runs.
function L.owners.add(home, flow_id, name, text, now)
  local key = L.record.key(home, flow_id)
  local before = redis.call('HGET', key .. ':owners', name)
  if before and lease_of(name, before) ~= lease_of(name, text) then
    take(home, flow_id, lease_of(name, before))
  end
  redis.call('HSET', key .. ':owners', name, text)
  if redis.call('HGET', key, 'state') == 'running' then
    give(home, flow_id, lease_of(name, text), now)
  end
end

-- Begins the leases of a flow that starts.
function L.owners.started(home, flow_id, now)
  for name, text in pairs(L.hashes.load(L.record.key(home, flow_id) .. ':owners')) do
    give(home, flow_id, lease_of(name, text), now)
  end
end

-- Forgets the owners of a flow that has ended.
function L.owners.ended(home, flow_id)
  local owners = L.record.key(home, flow_id) .. ':owners'
  if redis.call('EXISTS', owners) == 0 then
    return
  end
  for name, text in pairs(L.hashes.load(owners)) do
    take(home, flow_id, lease_of(name, text))
  end
  redis.call('UNLINK', owners)
end

-- Whether a flow has an owner that is not known to have lapsed.
local function is_wanted(home, owners)
  for name, text in pairs(L.hashes.load(owners)) do
    if redis.call('ZSCORE', home .. 'gmo:owners', lease_of(name, text)) then
      return true
    end
  end
  return false
end

-- Removes a flow from a lapsed owner. If nobody else owns it, the choice of the owner whose lease ended last applies:
-- that need not be the one found last.
local function lose(home, flow_id, lease, heard, now)
  local lapse, name, owners = lapse_of(lease), lease:match('^%d+:(.*)$'), L.record.key(home, flow_id) .. ':owners'
  local last = redis.call('HGET', owners, LAST) or ''
  if heard + lapse >= L.numbers.int(last:match('^%d+'), 0) then
    local choice = (redis.call('HGET', owners, name) or ''):match('\n(%a+)$') or ''
    local numbers = { L.numbers.text(heard + lapse), L.numbers.text(heard), L.numbers.text(lapse / 1000) }
    last = table.concat(numbers, '\n') .. '\n' .. choice .. '\n' .. name
  end
  redis.call('HDEL', owners, name, LAST)
  if is_wanted(home, owners) then
    redis.call('HSET', owners, LAST, last)
    return
  end
  local at, lasts, choice, who = last:match('^%d+\n(%d+)\n([^\n]+)\n(%a*)\n(.*)$')
  if choice == 'cancel' then
    local reason = 'its owner ' .. who .. ' is gone: its last renewal was at ' .. moment(tonumber(at))
      .. ', its lease lasts ' .. lasts .. ' s'
    L.settle.cancel(home, flow_id, reason, now)
    L.advance.slice(home, flow_id, now)
  end
end

-- Checks whether an owner is silent. If it was already silent at the previous check and its lapse is over, it loses a
-- slice of its flows; called again while it has any.
function L.owners.look(home, lease, was_silent, now)
  local lapse, heard = lapse_of(lease), tonumber(redis.call('ZSCORE', home .. 'gmo:owners', lease) or nil)
  if not heard then
    return
  elseif heard + half(lapse) > now then
    return check_at(home, 'owner', lease, heard + half(lapse))
  elseif not was_silent then
    return check_at(home, 'silent', lease, now + half(lapse))
  elseif heard + lapse > now then
    return check_at(home, 'silent', lease, heard + lapse)
  end
  local owned = home .. 'gmo:owned:' .. lease
  for _, flow_id in ipairs(redis.call('SPOP', owned, SLICE)) do
    lose(home, flow_id, lease, heard, now)
  end
  if redis.call('EXISTS', owned) == 1 then
    check_at(home, 'silent', lease, now)
  else
    redis.call('ZREM', home .. 'gmo:owners', lease)
  end
end
