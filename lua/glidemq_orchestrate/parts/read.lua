-- read: pages of large tables. Nothing here writes.
L.read = {}

-- A cursor of SCAN is valid in one server process only, so cursors in replies contain its id, and another process
-- starts over with the first page. A reader may get an item twice, but misses none.

-- The id of this server process.
local function process()
  return redis.call('INFO', 'server'):match('run_id:(%x+)') or ''
end

-- The SCAN cursor in a cursor made by `following`: 0 if another process made it.
local function resume(cursor)
  local at, origin = cursor:match('^(%d+)@(%x*)$')
  if not at then
    return cursor
  end
  return origin == process() and at or '0'
end

-- The cursor for a reply: 0 at the end, else with the id of the process.
local function following(cursor)
  return cursor == '0' and '0' or cursor .. '@' .. process()
end

-- A function that returns whether a node still has the results of the previous run and must be reset.
local function leftovers(key)
  local mark = redis.call('HGET', key, 'retry')
  return function(ref)
    return mark and L.rerun.is_due(key, ref, mark)
  end
end

-- Calls visit(name, table row, job key, whether it must be reset, its ref) for a page of nodes; returns the next
-- cursor, '0' at the end.
local function each_node(keys, args, visit)
  local start, is_left = keys[1]:match('^(.*:){[^{}]*}:gmo:flow:'), leftovers(keys[1])
  local page = redis.call('HSCAN', keys[1] .. ':nodes', resume(args[3]), 'COUNT', args[4])
  for i = 1, #page[2], 2 do
    local queue, job_id = L.stage.place(page[2][i + 1])
    local prefix = queue ~= '' and start .. '{' .. queue .. '}:'
    visit(page[2][i], page[2][i + 1], prefix and prefix .. 'job:' .. job_id, prefix and is_left(prefix .. job_id),
      prefix and prefix .. job_id)
  end
  return following(page[1])
end

-- Fields of a job; the state `unreadable`, which no job has, if the job or the row of its node cannot be read.
local function fields_of(job_key, ...)
  local fields = job_key and redis.pcall('HMGET', job_key, ...) or { err = 'no row' }
  return fields.err and { 'unreadable' } or fields
end

-- How a node with a removed job ended, by the record: `completed`, `failed`, or false if it has not.
function L.read.end_of_removed(key, ref)
  if redis.call('SISMEMBER', key .. ':open', ref) == 1 then
    return false
  end
  return redis.call('SISMEMBER', key .. ':failed', ref) == 1 and 'failed' or 'completed'
end

L.read.resume = resume
L.read.following = following
L.read.each_node = each_node
L.read.fields_of = fields_of
