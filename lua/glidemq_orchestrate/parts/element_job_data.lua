-- element_job_data: data and options of the job of an element. Part of element_jobs.lua.
L.element_job_data = {}
local text = L.numbers.text

-- The data of the job of an element: the item, or the data of the array with the item added.
function L.element_job_data.data(data, item)
  if not data or data:sub(1, 1) ~= '{' then
    return item
  end
  local comma = data:find('^{%s*}') and '' or ','
  return data:gsub('}%s*$', '') .. comma .. '"item":' .. item .. '}'
end

-- The options of the job of an element, whose ordering key may contain the item or a field of it. nil with the reason if
-- the item has no such field.
function L.element_job_data.options(a, opts, item)
  if not a.is_keyed then
    return opts
  end
  local is_json, items = pcall(cjson.decode, '[' .. item .. ']')
  local missing
  local function filled(field)
    local value = is_json and items[1]
    if field ~= '' then value = type(value) == 'table' and value[field] or nil end
    if type(value) == 'number' then
      return value % 1 == 0 and text(value) or tostring(value)
    elseif type(value) == 'string' then
      return (cjson.encode(value):sub(2, -2))
    end
    missing = 'its item has no text or number for ' .. (field == '' and 'item' or 'item.' .. field)
      .. ' in the ordering key'
  end
  opts = opts:gsub('{item%.?([%w_]*)}', filled)
  return not missing and opts or nil, missing
end
