"""A producer that writes Latin-1 where UTF-8 is expected, and nests without end: odd.py PORT EXCHANGE KEY.

Publishes `fine-0` .. `fine-9` with a message in front of and between them that a client may fail to read.
"""

import sys

import pika

port, exchange, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.setrecursionlimit(1_000_000)
cafe = "caf\u00e9".encode("latin-1")
deep = {}
for _ in range(12_000):  # fills a frame
    deep = {"": deep}
odd = [
    pika.BasicProperties(correlation_id=cafe, message_id="odd-property"),
    pika.BasicProperties(message_id=cafe),
    pika.BasicProperties(headers={cafe: "v", "X": "kept"}, type=cafe, message_id="odd-header"),
    pika.BasicProperties(headers={"table": {"inner": [{cafe: 1}]}}, message_id="odd-table"),
    pika.BasicProperties(headers={"deep": deep}, message_id="odd-depth"),
]
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.confirm_delivery()
for n in range(10):
    if n < len(odd):
        odd[n].delivery_mode = 2
        channel.basic_publish(exchange, key, b"odd", odd[n], mandatory=True)
    fine = pika.BasicProperties(message_id=f"fine-{n}", correlation_id="caf\u00e9", delivery_mode=2)
    channel.basic_publish(exchange, key, b"fine", fine, mandatory=True)
connection.close()
