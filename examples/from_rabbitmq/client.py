"""Unchanged producers and consumers of a delayed-message exchange.

client.py URL declare: declares an exchange with the queue that punctual reads, and one with a consumer's queue.
client.py URL run COUNT: publishes COUNT messages with x-delay, and prints each as it arrives; exit 0 if all arrived.
"""

import sys
import time

import pika

IN, OUT, PATIENCE = "punctual-example.in", "punctual-example.out", 20  # seconds

try:
    connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
except pika.exceptions.AMQPError as error:
    sys.exit(f"no connection: {error!r}")
channel = connection.channel()
if sys.argv[2] == "declare":
    for name in (IN, OUT):
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, "#")
        channel.queue_purge(name)
    sys.exit()

count = int(sys.argv[3])
started = time.time()
for n in range(1, count + 1):
    headers = {"x-delay": n * 1000, "sent": int(time.time() * 1000)}
    properties = pika.BasicProperties(headers=headers, delivery_mode=2, message_id=f"order-{n}")
    channel.basic_publish(IN, f"customer.{n}", f"order {n}".encode(), properties)
arrived = 0
for method, properties, body in channel.consume(OUT, inactivity_timeout=1):
    if method:
        arrived += 1
        late = time.time() * 1000 - properties.headers["punctual-due"]
        print(f"{properties.message_id:<10} {method.routing_key}  {late:+6.0f} ms  {body.decode()}", flush=True)
        channel.basic_ack(method.delivery_tag)
    if arrived == count or time.time() > started + PATIENCE:
        break
connection.close()
sys.exit(arrived < count)
