-- A value as JSON, with `/` as it is: cjson escapes it.
local function encode(value)
  local json = cjson.encode(value)
  return string.find(json, '\\/', 1, true) and string.gsub(json, '\\/', '/') or json
end
