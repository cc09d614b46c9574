-- gmo_mark: write something that leaves no trace, so that WAIT and WAITAOF on this connection wait for everything that
-- was written before, by whomever: they know only the last write of their own connection, and a repeated call may have
-- written nothing.
-- KEYS  1 a key that nothing else uses, in the slot of what was written
-- REPLY string: the replication id of the server; it changes when another server becomes the primary, or this one starts
--       again
local function mark(keys)
  redis.call('SET', keys[1], '')
  redis.call('DEL', keys[1])
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end

redis.register_function { function_name = 'gmo_mark', callback = mark, flags = { 'allow-oom' } }
