-- Bytes that a stored body takes after it is read: a compressed body states its full length (src/message/codec.rs).
local function weight(body)
  local form = string.byte(body, 18)
  if (form == 1 or form == 3) and string.byte(body, 1) == 2 then
    local start = form == 1 and 18 or 26
    if #body >= start + 4 then return start + struct.unpack('>I4', body, start + 1) end
  end
  return #body
end
