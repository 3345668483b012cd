"""Tests of reminders for orders, on a running `punctual dev`."""

import json
import os
import urllib.request

import pytest

URL = os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:8080")


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read() or "null")


@pytest.fixture(autouse=True)
def clean():
    call("POST", "/v1/reset")


def remind(order, delay):
    message = {"id": f"remind-{order}", "delay": delay, "payload": {"order": order}}
    call("POST", "/v1/routes/orders/messages", message)


def advance(by):
    advanced = call("POST", "/v1/clock/advance", {"by": by})
    assert advanced["settled"] and not advanced["more"], advanced


def delivered():
    messages = call("GET", "/v1/inbox?route=orders")["messages"]
    return [json.loads(message["payload"])["order"] for message in messages]


def test_a_reminder_arrives_after_30_minutes():
    remind(42, "30m")
    advance("29m")
    assert delivered() == []
    advance("1m")
    assert delivered() == [42]


def test_a_paid_order_gets_no_reminder():
    remind(43, "30m")
    call("DELETE", "/v1/routes/orders/messages/remind-43")
    advance("1d")
    assert delivered() == []
