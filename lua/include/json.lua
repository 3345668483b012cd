-- A value as JSON, without the escapes of `/` that cjson writes.
local function encode(value)
  local json = cjson.encode(value)
  return string.find(json, '\\/', 1, true) and string.gsub(json, '\\/', '/') or json
end
