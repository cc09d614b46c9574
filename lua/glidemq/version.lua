-- glidemq_version: the wire version of the library.
-- KEYS  any, ignored          ARGS  any, ignored
-- REPLY string
-- No function of this library carries `no-writes`: clients never call them read-only.

local function version()
  return L.version
end

redis.register_function({ function_name = 'glidemq_version', callback = version, flags = { 'allow-oom' } })
