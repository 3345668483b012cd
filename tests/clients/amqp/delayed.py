"""A producer as it runs beside a delayed-message exchange, without its declare: delayed.py PORT EXCHANGE KEY COUNT PREFIX.

Publishes COUNT persistent, confirmed messages PREFIX0.. due half a second to two and a half seconds later, and each a
second time, without x-delay, to the exchange `control`.
"""

import datetime
import decimal
import sys
import time

import pika

port, exchange, key, count, prefix = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.confirm_delivery()
for n in range(count):
    delay = 500 + n * 2
    headers = {
        "sent": int(time.time() * 1000),
        "delay": delay,
        "text": f"text {n} \u00e9",
        "flag": n % 2 == 0,
        "large": 2**40 + n,
        "bytes": b"\x00\xff",
        "at": datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.timezone.utc),
        "price": decimal.Decimal("3.14"),
        "list": [1, "two", None],
        "table": {"inner": {"deep": True}},
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=dict(headers),
        delivery_mode=2,
        priority=n % 10,
        correlation_id=f"c{n}",
        reply_to="answers",
        message_id=f"{prefix}{n}",
        timestamp=1700000000 + n,
        type="order",
        app_id="shop",
    )
    body = f"body {n}".encode()
    channel.basic_publish("control", key, body, properties, mandatory=True)
    properties.headers["x-delay"] = delay
    channel.basic_publish(exchange, key, body, properties, mandatory=True)
connection.close()
