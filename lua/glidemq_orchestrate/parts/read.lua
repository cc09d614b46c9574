-- read: pages of large tables. Nothing here writes.
L.read = {}

-- Cursors of SCAN mean something to one server process only: those that are given out say which, and a page that
-- another one is asked for is the first again. Whoever reads may get things twice, and misses none.
local function process()
  return redis.call('INFO', 'server'):match('run_id:(%x+)') or ''
end
local function resume(cursor)
  local at, origin = cursor:match('^(%d+)@(%x*)$')
  if not at then
    return cursor
  end
  return origin == process() and at or '0'
end
local function following(cursor)
  return cursor == '0' and '0' or cursor .. '@' .. process()
end

-- Whether a node still has what the generation before left in it: its turn to run again has not come.
local function leftovers(key)
  local marks = redis.call('HMGET', key, 'restart', 'retry')
  return function(ref)
    if marks[1] then
      return redis.call('SISMEMBER', key .. ':open', ref) == 0
    end
    return marks[2] and redis.call('SISMEMBER', key .. ':failed', ref) == 1
  end
end

-- Calls visit(name, table row, job key, is it about to run again) for a page of nodes; returns the next cursor, '0' at
-- the end.
local function each_node(keys, args, visit)
  local start, is_left = keys[1]:match('^(.*:){[^{}]*}:gmo:flow:'), leftovers(keys[1])
  local page = redis.call('HSCAN', keys[1] .. ':nodes', resume(args[3]), 'COUNT', args[4])
  for i = 1, #page[2], 2 do
    local queue, job_id = L.stage.place(page[2][i + 1])
    local prefix = queue ~= '' and start .. '{' .. queue .. '}:'
    visit(page[2][i], page[2][i + 1], prefix and prefix .. 'job:' .. job_id, prefix and is_left(prefix .. job_id))
  end
  return following(page[1])
end

-- Fields of a job; of one that cannot be read, or that no row leads to, a state that no job has.
local function fields_of(job_key, ...)
  local fields = job_key and redis.pcall('HMGET', job_key, ...) or { err = 'no row' }
  return fields.err and { 'unreadable' } or fields
end

L.read.resume = resume
L.read.following = following
L.read.each_node = each_node
L.read.fields_of = fields_of
