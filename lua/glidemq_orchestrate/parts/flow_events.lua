-- flow_events: the events of a flow, on the events stream of its home queue.
L.flow_events = {}

-- Emits an event of a flow: with the public id and, after generation 0, the number of the generation.
function L.flow_events.emit(home, kind, stored)
  local id, number = L.generations.split(stored)
  if number > 0 then
    L.events.emit(home .. 'events', kind, '', 'flowId', id, 'generation', number)
  else
    L.events.emit(home .. 'events', kind, '', 'flowId', id)
  end
end
