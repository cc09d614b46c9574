-- held_elements: which elements of an open array workers hold.
L.held_elements = {}
local LONG = 5000

-- Whether a worker holds a job longer than one without its handler would, which hands it back at once.
local function is_held_long(job_key, now)
  return now - L.numbers.int(redis.call('HGET', job_key, 'processedOn'), now) > LONG
end

-- Whether a worker has begun elements of an array, of which workers without its handler have handed some back. The second
-- result: it is not known yet, as a worker holds some.
function L.held_elements.have_begun(prefix, array_id, now)
  local key, is_passing = prefix .. 'gmo:array:' .. array_id, false
  if redis.call('HEXISTS', key, 'begun') == 1 then
    return true, false
  end
  for _, slice_id in ipairs(redis.call('SRANDMEMBER', key .. ':slices', 1)) do
    is_passing = true
    if is_held_long(prefix .. 'job:' .. slice_id, now) then
      return true, false
    end
  end
  for _, job_id in ipairs(redis.call('SMEMBERS', key .. ':jobs')) do
    local job_key = prefix .. 'job:' .. job_id
    if redis.call('HGET', job_key, 'state') ~= 'active' then
      if L.due.has_begun(job_key) then return true, false end
    elseif is_held_long(job_key, now) then
      return true, false
    else
      is_passing = true
    end
  end
  return false, is_passing
end
