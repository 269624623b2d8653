"""What Redis does with the limits of a tenant, one script at a time: see shared_limits.py.

KEYS are the HASH of rates and the ZSET of what runs. Time is Redis' own: the clocks of routers do
not matter.
"""

from router.redis_script import RedisScript

_BUCKETS = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local function level(name, rate, burst)
  local kept = redis.call('HMGET', KEYS[1], name, name .. ':at')
  local since = math.max(0, now - (tonumber(kept[2]) or now))
  return math.min((tonumber(kept[1]) or burst) + since * rate, burst)
end
local function keep(name, value)
  redis.call('HSET', KEYS[1], name, string.format('%.6f', value),
             name .. ':at', string.format('%.6f', now))
  redis.call('EXPIRE', KEYS[1], 86400)
end
"""

# member, lease, concurrency, then rate, burst, amount of requests and of tokens; 0 is no limit.
# Answers the place of the limit that is in the way, 0 for none, and the seconds to wait for it.
TAKE = RedisScript(
    _BUCKETS
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if tonumber(ARGV[3]) > 0 and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then
  return {1, '0'}
end
local levels = {}
for place, name in ipairs({'requests', 'tokens'}) do
  local rate, burst, amount = unpack(ARGV, 1 + 3 * place, 3 + 3 * place)
  if tonumber(rate) > 0 then
    levels[name] = level(name, tonumber(rate), tonumber(burst)) - amount
    local missing = math.min(amount, burst) - amount - levels[name]
    if missing > 0 then
      return {1 + place, tostring(missing / rate)}
    end
  end
end
for name, value in pairs(levels) do keep(name, value) end
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], 86400)
return {0, '0'}
"""
)

# member, rate, burst and correction of tokens. What is not there has not been taken.
GIVE = RedisScript(
    _BUCKETS
    + """
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 and tonumber(ARGV[2]) > 0 then
  keep('tokens', math.min(level('tokens', tonumber(ARGV[2]), tonumber(ARGV[3])) - ARGV[4], ARGV[3]))
end
return 0
"""
)

# lease, then members.
RENEW = RedisScript(
    """
local time = redis.call('TIME')
for place = 2, #ARGV do
  redis.call('ZADD', KEYS[2], 'XX', time[1] + time[2] / 1e6 + ARGV[1], ARGV[place])
end
return 0
"""
)
