// Tests of reminders for orders, on a running `punctual dev`.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

const URL = process.env.PUNCTUAL_URL ?? "http://127.0.0.1:8080";

async function call(method, path, body) {
  const reply = await fetch(URL + path, { method, body: body && JSON.stringify(body) });
  assert.ok(reply.ok, `${method} ${path}: ${reply.status}`);
  const text = await reply.text();
  return text ? JSON.parse(text) : null;
}

async function remind(order, delay) {
  const message = { id: `remind-${order}`, delay, payload: { order } };
  await call("POST", "/v1/routes/orders/messages", message);
}

async function advance(by) {
  const advanced = await call("POST", "/v1/clock/advance", { by });
  assert.ok(advanced.settled && !advanced.more, JSON.stringify(advanced));
}

async function delivered() {
  const { messages } = await call("GET", "/v1/inbox?route=orders");
  return messages.map((message) => JSON.parse(message.payload).order);
}

beforeEach(() => call("POST", "/v1/reset"));

test("a reminder arrives after 30 minutes", async () => {
  await remind(42, "30m");
  await advance("29m");
  assert.deepEqual(await delivered(), []);
  await advance("1m");
  assert.deepEqual(await delivered(), [42]);
});

test("a paid order gets no reminder", async () => {
  await remind(43, "30m");
  await call("DELETE", "/v1/routes/orders/messages/remind-43");
  await advance("1d");
  assert.deepEqual(await delivered(), []);
});
