// A producer that speaks AMQP 1.0: amqp10.js PORT TARGET CONTROL COUNT PREFIX.
//
// Sends COUNT durable, settled messages PREFIX0.. to TARGET, due half a second to two and a half seconds later by the
// annotation x-opt-delivery-delay, and each a second time, without it, to CONTROL.
const rhea = require("rhea");

const [port, target, control, count, prefix] = process.argv.slice(2);
const container = rhea.create_container();
const total = 2 * Number(count);
let accepted = 0;

function message(n, delay) {
  return {
    durable: true,
    priority: n % 10,
    message_id: `${prefix}${n}`,
    correlation_id: `c${n}`,
    content_type: "application/json",
    content_encoding: "utf-8",
    subject: "order",
    reply_to: "answers",
    creation_time: new Date(1700000000000 + n * 1000),
    message_annotations: delay === undefined ? undefined : { "x-opt-delivery-delay": delay },
    application_properties: {
      sent: rhea.types.wrap_long(Date.now()),
      delay: rhea.types.wrap_int(500 + n * 2),
      text: `text ${n} é`,
      flag: n % 2 === 0,
      large: rhea.types.wrap_long(2 ** 40 + n),
      double: rhea.types.wrap_double(n / 7),
    },
    body: rhea.message.data_section(Buffer.from(`body ${n}`)),
  };
}

// The next message of each sender goes as soon as there is credit for it.
function pump(sender, delayed) {
  let next = 0;
  const send = () => {
    while (next < Number(count) && sender.sendable()) {
      sender.send(message(next, delayed ? 500 + next * 2 : undefined));
      next++;
    }
  };
  sender.on("sendable", send);
}

container.on("accepted", (context) => {
  accepted++;
  if (accepted === total) context.connection.close();
});
for (const event of ["rejected", "released", "modified", "connection_error", "sender_error", "session_error", "disconnected"]) {
  container.on(event, (context) => {
    console.error(event, String(context.error ?? context.delivery?.remote_state ?? context.sender?.error ?? ""));
    process.exit(1);
  });
}
const connection = container.connect({ host: "127.0.0.1", port: Number(port), username: "guest", password: "guest", reconnect: false });
pump(connection.open_sender(target), true);
pump(connection.open_sender(control), false);
