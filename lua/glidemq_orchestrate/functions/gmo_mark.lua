-- gmo_mark: make a write that leaves no trace, so that WAIT and WAITAOF on this connection wait for all earlier writes
-- of any client: they cover only the last write of their own connection, and a repeated call may have written nothing.
-- KEYS  1 an otherwise unused key, in the slot of the writes
-- REPLY string: the replication id of the server; it changes when another server becomes the primary, or this one
--       restarts
local function mark(keys)
  redis.call('SET', keys[1], '')
  redis.call('DEL', keys[1])
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end

redis.register_function { function_name = 'gmo_mark', callback = mark, flags = { 'allow-oom' } }
