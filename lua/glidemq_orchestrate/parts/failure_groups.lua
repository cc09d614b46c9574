-- failure_groups: the group that a handler names for the failure of its job. All other groups are derived by clients.
-- The outcome of kind `grouped` is that of kind `fail`; its text = group, line break, reason.
L.failure_groups = {}

-- The outcome with its group, if any, apart from its text.
function L.failure_groups.split(o)
  if o.kind == 'grouped' then
    o.kind, o.failure_group, o.text = 'fail', o.text:match('^([^\n]*)\n(.*)$')
    o.text = o.text or ''
  end
  return o
end

-- Stores the group with the time of the failure: a later failure, also one by a Node worker, does not belong to it.
function L.failure_groups.note(key, o, now_text)
  if o.failure_group then
    redis.call('HSET', key, 'gmo:failure_group', now_text .. ' ' .. o.failure_group)
  end
end
