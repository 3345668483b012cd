-- Bytes that a stored body takes once it is read: a compressed one names its length (src/message/codec.rs).
local function weight(body)
  if string.byte(body, 18) == 1 and string.byte(body, 1) == 2 and #body >= 22 then
    return 18 + struct.unpack('>I4', body, 19)
  end
  return #body
end
