// A producer as it runs beside a delayed-message exchange, without its declare: amqp.js PORT EXCHANGE KEY COUNT PREFIX.
//
// Publishes COUNT persistent, confirmed messages PREFIX0.. due half a second to two and a half seconds later, and each a
// second time, without x-delay, to the exchange `control`.
const amqplib = require("amqplib");

const [port, exchange, key, count, prefix] = process.argv.slice(2);

async function run() {
  const connection = await amqplib.connect(`amqp://127.0.0.1:${port}`);
  const channel = await connection.createConfirmChannel();
  for (let n = 0; n < Number(count); n++) {
    const delay = 500 + n * 2;
    const headers = {
      sent: Date.now(),
      delay,
      text: `text ${n} é`,
      flag: n % 2 === 0,
      large: 2 ** 40 + n,
      double: n / 7,
      bytes: Buffer.from([0, 255]),
      at: { "!": "timestamp", value: 1700000000 },
      price: { "!": "decimal", value: { digits: 314, places: 2 } },
      list: [1, "two", null],
      table: { inner: { deep: true } },
    };
    const options = {
      persistent: true,
      mandatory: true,
      messageId: `${prefix}${n}`,
      correlationId: `c${n}`,
      contentType: "application/json",
      contentEncoding: "utf-8",
      priority: n % 10,
      timestamp: 1700000000 + n,
      type: "order",
      appId: "shop",
      replyTo: "answers",
    };
    const body = Buffer.from(`body ${n}`);
    channel.publish("control", key, body, { ...options, headers });
    channel.publish(exchange, key, body, { ...options, headers: { ...headers, "x-delay": delay } });
  }
  await channel.waitForConfirms();
  await connection.close();
}

run().catch((error) => {
  console.error(error);
  process.exit(1);
});
