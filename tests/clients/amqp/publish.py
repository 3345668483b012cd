"""A producer as it runs beside a delayed-message exchange: publish.py PORT EXCHANGE KEY COUNT.

Publishes COUNT persistent, confirmed messages `m0`.. with every property of AMQP and headers of many types, due half
a second to two and a half seconds later: x-delay is an integer for even ones and a text for odd ones.
"""

import datetime
import decimal
import sys
import time

import pika

port, exchange, key, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.confirm_delivery()
for n in range(count):
    delay = 500 + n * 2
    headers = {
        "x-delay": delay if n % 2 == 0 else str(delay),
        "sent": int(time.time() * 1000),
        "X-Text": f"text {n} \u00e9",
        "two words": "an odd name",
        "control": "a\r\nb",
        "number": n,
        "large": 2**40 + n,
        "table": {"inner": [1, "two", None, {"deep": True}]},
        "bytes": b"\x00\xff",
        "at": datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.timezone.utc),
        "price": decimal.Decimal("3.14"),
        "nothing": None,
        "CC": ["nowhere"],
    }
    properties = pika.BasicProperties(
        content_type="application/x-test",
        content_encoding="identity",
        headers=headers,
        delivery_mode=2,
        priority=n % 10,
        correlation_id=f"c{n}",
        reply_to="an\nswers",
        expiration="600000",
        message_id=f"m{n}",
        timestamp=1700000000 + n,
        type="order",
        user_id="guest",
        app_id="shop",
        cluster_id="cluster",
    )
    channel.basic_publish(exchange, key, f"body {n}".encode(), properties, mandatory=True)
connection.close()
