-- gmo_version: return the version of the loaded library.
-- KEYS  any, ignored          ARGS  any, ignored
-- REPLY array {version, sha256 of the source}
local function version()
  return { L.version, L.sha256 }
end

redis.register_function({ function_name = 'gmo_version', callback = version, flags = { 'no-writes' } })
