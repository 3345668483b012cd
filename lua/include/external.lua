-- The score of another program as ms since the epoch, rounded up; `unit` is the ms in 1 of it. Less than a microsecond
-- is a rounding error: 1700000000.123 * 1000 is not whole.
local function due_ms(score, unit)
  return math.max(0, math.ceil(score * unit - 0.001))
end
