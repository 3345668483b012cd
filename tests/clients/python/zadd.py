"""A producer as there are many: zadd.py PORT KEY MESSAGES CANCELLED

Adds so many JSON texts, due from two seconds on, a millisecond or two apart, in seconds with fractions; then the
ones that it cancels, due five seconds ahead, and cancels them. Prints the number of members before it cancels.
"""

import json
import sys
import time

import redis

port, key, messages, cancelled = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
server = redis.Redis(port=port)
start = time.time() + 2
for n in range(messages):
    due = start + n * 0.0015
    server.zadd(key, {json.dumps({"by": "python", "n": n, "due": due}): due})
unwanted = [json.dumps({"by": "python", "cancelled": n}) for n in range(cancelled)]
for member in unwanted:
    server.zadd(key, {member: time.time() + 5})
assert server.zcard(key) >= len(unwanted)
removed = sum(server.zrem(key, member) for member in unwanted)
assert removed == cancelled, f"{removed} of {cancelled} were still there"
