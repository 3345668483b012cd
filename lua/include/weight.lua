-- Bytes that a stored body takes after it is read: a compressed body states its full length (src/message/codec.rs).
local function weight(body)
  local form = string.byte(body, 18)
  if form and form % 2 == 1 and string.byte(body, 1) == 2 then
    local start = form % 4 == 3 and 26 or 18
    if form % 16 >= 8 and #body >= start + 2 then start = start + 2 + struct.unpack('>I2', body, start + 1) end
    if #body >= start + 4 then return start + struct.unpack('>I4', body, start + 1) end
  end
  return #body
end
