"""Schedules the payload on standard input: over HTTP, or with lua/produce.lua in Redis.

Every call has an id, so it can be repeated after a 503, a timeout or a lost connection: the message is
scheduled once. The delay counts from the attempt that is accepted.
"""

import argparse
import base64
import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from hashlib import sha1

import redis

URL = os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("PUNCTUAL_TOKEN")
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
# `redis.key_prefix` of punctual.
PREFIX = os.environ.get("PUNCTUAL_KEY_PREFIX", "punctual")
# Seconds; longer than a restart of punctual or a failover of Redis.
GIVE_UP_AFTER = float(os.environ.get("PUNCTUAL_GIVE_UP_AFTER", "60"))
# Timeout of one attempt, in seconds; longer than `server.request_timeout`, so that the API answers first.
TIMEOUT = 10
# Seconds between attempts, doubled each time. `Retry-After` may ask for more.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# The API refuses for now, or a proxy in front of it got no answer. A 429 is repeated only if it has `Retry-After`.
REPEATED_STATUS = {408, 502, 503, 504}
# Temporary errors of Redis: it starts, is a replica or is full; or the route is full or has other partitions.
REPEATED_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError, redis.ReadOnlyError)
REPEATED_TEXTS = ("BUSY ", "MISCONF ", "PUNCTUAL limit-messages", "PUNCTUAL limit-bytes", "PUNCTUAL wrong-partition")


class Failed(Exception):
    """Repeating the call does not help."""


class Unavailable(Exception):
    """Refused for now, or may have taken effect: repeat with the same id, after `retry_after` seconds."""

    def __init__(self, text, retry_after=0.0):
        super().__init__(text)
        self.retry_after = retry_after


def post(route, id, delay, payload, headers, on_conflict):
    """One attempt over HTTP. Returns the status of the message."""
    body = {"id": id, "delay": delay, "payload_base64": base64.b64encode(payload).decode(), "headers": headers}
    body["on_conflict"] = on_conflict
    url = f"{URL}/v1/routes/{urllib.parse.quote(route, safe='')}/messages"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if TOKEN:
        request.add_header("Authorization", f"Bearer {TOKEN}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            # 201: scheduled. 200: the id is known or was replaced; `status` says which.
            return json.load(reply)["status"]
    except urllib.error.HTTPError as error:
        text = f"{error.code}: {error.read().decode(errors='replace')}"
        retry_after = error.headers.get("Retry-After", "")
        if error.code == 409:
            return "in_flight"
        if error.code in REPEATED_STATUS or (error.code == 429 and retry_after):
            raise Unavailable(text, float(retry_after) if retry_after.isdigit() else 0.0) from error
        raise Failed(text) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(str(error)) from error


def produce(server, script, route, id, delay, payload, headers, on_conflict):
    """One attempt in Redis. Returns the status of the message."""
    registered = server.hget(f"{PREFIX}:routes", route)
    if registered is None:
        raise Failed(f"no route {route} is registered below {PREFIX}")
    n = json.loads(registered)["partitions"]
    index = zlib.crc32(id.encode()) % n
    key = f"{{{PREFIX}:{route}:{index}/{n}}}:pending"
    options = json.dumps({"headers": headers, "on_conflict": on_conflict})
    arguments = [1, key, 1, id, f"+{delay}", payload, options]
    try:
        reply = server.evalsha(sha1(script).hexdigest(), *arguments)
    except redis.exceptions.NoScriptError:
        # After a restart or a failover; Redis keeps it from now on.
        reply = server.eval(script, *arguments)
    return reply[0].decode()


def in_redis(attempt):
    """Converts the errors of an attempt in Redis to those of an attempt over HTTP."""
    try:
        return attempt()
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise Failed(str(error)) from error
    except REPEATED_ERRORS as error:
        raise Unavailable(str(error)) from error
    except redis.RedisError as error:
        raise (Unavailable if str(error).startswith(REPEATED_TEXTS) else Failed)(str(error)) from error


def repeat(attempt):
    """Repeats an attempt while it may help, with growing, random pauses."""
    deadline = time.monotonic() + GIVE_UP_AFTER
    pause = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except Unavailable as error:
            wait = max(error.retry_after, pause * random.uniform(0.5, 1))
            if time.monotonic() + wait > deadline:
                raise
            print(f"schedule: {error}; next attempt in {wait:.1f} s", file=sys.stderr, flush=True)
        time.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)


def header(text):
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("use 'NAME: VALUE'")
    return name, value.strip()


def main():
    parser = argparse.ArgumentParser(description="Schedules the payload on standard input.")
    parser.add_argument("--script", metavar="FILE", help="lua/produce.lua: in Redis, not over HTTP")
    parser.add_argument("--header", type=header, action="append", default=[], metavar="'NAME: VALUE'")
    parser.add_argument("--replace", action="store_true", help="replace a waiting message of this id")
    parser.add_argument("route")
    parser.add_argument("id")
    parser.add_argument("delay", type=int, help="milliseconds")
    given = parser.parse_args()
    message = (given.route, given.id, given.delay, sys.stdin.buffer.read(), dict(given.header))
    message += ("replace" if given.replace else "keep",)
    if given.script:
        with open(given.script, "rb") as file:
            script = file.read()
        server = redis.Redis.from_url(REDIS_URL, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
        status = repeat(lambda: in_redis(lambda: produce(server, script, *message)))
    else:
        status = repeat(lambda: post(*message))
    if status == "in_flight":
        raise Failed(f"{given.id} is being sent and was not replaced")
    print(status, given.id)


try:
    main()
except (Failed, Unavailable, OSError) as error:
    sys.exit(f"schedule: {error}")
