-- ordering: the legacy record of finished sequence numbers.
-- Only jobs of old library versions carry `orderingKey`; for them meta field `orderdone:<key>` holds the
-- highest N such that 1..N are finished, and `orderdone:pending:<key>` the finished numbers above it.

local M = {}
L.ordering = M

-- `ordering_key` and `seq` come from the job or from the hints of the caller.
function M.mark_done(prefix, ordering_key, seq)
  seq = L.numbers.int(seq, 0)
  if not ordering_key or ordering_key == '' or seq <= 0 then
    return
  end
  local meta, field = prefix .. 'meta', 'orderdone:' .. ordering_key
  local pending = prefix .. 'orderdone:pending:' .. ordering_key
  local done = L.numbers.int(redis.call('HGET', meta, field), 0)
  local number = L.numbers.text(seq)
  if seq <= done then
    redis.call('HDEL', pending, number)
    return
  end
  redis.call('HSET', pending, number, 1)
  local reached = done
  while redis.call('HDEL', pending, L.numbers.text(reached + 1)) == 1 do
    reached = reached + 1
  end
  if reached ~= done then
    redis.call('HSET', meta, field, L.numbers.text(reached))
  end
end
