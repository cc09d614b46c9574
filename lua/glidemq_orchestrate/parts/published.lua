-- published: output of accepted attempts that readers may not see yet. The sorted set gmo:published of a queue has a
-- line for each, and when it was accepted. The client that makes it visible removes the line; the job may be removed
-- long before. No line stays for longer than KEPT_MS.
L.published = {}
local KEPT_MS = 30 * 24 * 3600 * 1000

-- The lines of an attempt in a field gmo:published.
function L.published.of(field, token, processed_on)
  local lines = {}
  local attempt, rest = (field or ''):match('^([^\n]*)\n(.*)$')
  if attempt == L.lease.attempt(token, processed_on) then
    for line in rest:gmatch('[^\n]+') do
      lines[#lines + 1] = line
    end
  end
  return lines
end

-- Lets the notes of an accepted attempt outlive its job. If the key has another type, only the notes are lost.
function L.published.accept(x, o, job)
  local key = x.prefix .. 'gmo:published'
  redis.call('HDEL', x.prefix .. 'job:' .. o.job_id, 'gmo:published')
  local lines = L.published.of(job.published, o.token, o.processed_on)
  if #lines == 0 then
    return
  end
  for _, line in ipairs(lines) do
    redis.pcall('ZADD', key, x.now_text, line)
  end
  local old = redis.pcall('ZRANGEBYSCORE', key, '-inf', L.numbers.text(x.now - KEPT_MS), 'LIMIT', 0, 100)
  L.hashes.zrem_all(key, old.err and {} or old)
  redis.pcall('PEXPIRE', key, KEPT_MS)
end
