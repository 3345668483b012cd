"""Source to sink, seen from outside: latency.py URL EXCHANGE KEY QUEUE RATE SECONDS [DELAY_MS].

Publishes RATE persistent messages a second to EXCHANGE under KEY, with x-delay where DELAY_MS is given, consumes QUEUE, and
prints how many milliseconds after their publishing (and their delay) the messages came: percentiles and the largest.
"""

import os
import sys
import threading
import time

import pika

url, exchange, key, queue, rate, seconds = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
delay = int(sys.argv[7]) if len(sys.argv) > 7 else None
total, took = rate * seconds, []


def consume():
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=1000)

    def got(channel, method, properties, body):
        took.append((time.time_ns() - int(body)) / 1e6 - (delay or 0))
        channel.basic_ack(method.delivery_tag)
        if len(took) == total:
            channel.stop_consuming()

    channel.basic_consume(queue, got)
    channel.start_consuming()


consumer = threading.Thread(target=consume, daemon=True)
consumer.start()
time.sleep(0.5)
if os.fork() == 0:  # else the two would wait for each other's interpreter lock
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    headers = {} if delay is None else {"x-delay": delay}
    start = time.monotonic()
    for n in range(total):
        ahead = start + n / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(n), headers=headers)
        channel.basic_publish(exchange, key, str(time.time_ns()).encode(), properties)
    channel.connection.close()
    os._exit(0)
consumer.join(seconds + 60)
took.sort()
shown = [f"{name} {took[min(len(took) - 1, int(len(took) * share))]:.1f}" for name, share in
         (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1))] if took else []
print(f"{len(took)} of {total} in ms:", *shown)
sys.exit(len(took) != total)
