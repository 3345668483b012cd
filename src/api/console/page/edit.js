// A message in a form: a dead letter is edited and sent again, or a test with the content of a message is scheduled.

import { call, ofMessage, ofRoute, post, Problem } from "./api.js";
import { ask } from "./dialog.js";
import { instant } from "./format.js";

/** The header of a test. */
const TEST = "Punctual-Test";
const AREA = { spellcheck: "false", rows: 4 };

/** Large integers as texts, which the API takes. */
const json = (value) => JSON.stringify(value, (_, inner) => (typeof inner === "bigint" ? String(inner) : inner), 1);

/** The fields of the form with the values of `message`. */
function fieldsOf(message) {
  const isText = message.payload !== undefined;
  const hasBytes = message.key === null && message.key_base64 !== undefined;
  const all = [
    [isText ? "payload" : "payload_base64", isText ? "Payload" : "Payload, as base64", isText ? message.payload : message.payload_base64, AREA],
    ["content_type", "Content type", message.content_type],
    ["headers", "Headers, as JSON", json(message.headers), AREA],
    [hasBytes ? "key_base64" : "key", hasBytes ? "Key, as base64" : "Key", hasBytes ? message.key_base64 : message.key],
  ];
  return all.map(([name, label, initial, more]) => ({ name, label, initial: initial ?? "", autocomplete: "off", ...more }));
}

/** A value of the form as the API takes it; an empty one is null. */
function valueOf(name, text) {
  if (name.startsWith("payload")) return text;
  if (name !== "headers" || !text) return text || null;
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(422, "invalid", "the headers are not JSON");
  }
}

export function edit(route, message) {
  const { id, revision, max_attempts: most, expires_at: expires } = message;
  const fields = [
    ...fieldsOf(message),
    { name: "max_attempts", label: "Maximum attempts", type: "number", min: 1, initial: most === undefined ? "" : String(most) },
    { name: "expires_at", label: "Expires, such as 2031-05-04T03:02:01Z", initial: expires === undefined ? "" : new Date(instant(String(expires))).toISOString() },
  ];
  ask({
    title: "Edit and send again",
    text: `${id} is changed, and becomes due now on route ${route}, with 0 attempts. A time of expiry is dropped unless it is changed here.`,
    verb: "Send again",
    fields,
    run: async (values) => {
      const changes = {};
      for (const { name, initial } of fields) {
        if (values[name] !== initial) changes[name] = name === "max_attempts" ? Number(values[name]) || null : valueOf(name, values[name]);
      }
      if (Object.keys(changes).length) await call("PATCH", ofMessage(route, id), { body: { ...changes, revision } });
      const { count } = await post(ofRoute(route, "/dead/redrive"), { ids: [id], expiry: changes.expires_at ? "keep" : "drop" });
      return Number(count) ? `${id} is due now.` : `${id} is not dead any more, and was not sent again.`;
    },
  });
}

/** The text of the result names the new id. */
export function test(route, message) {
  const fields = [...fieldsOf(message), { name: "delay", label: "Delay from now, such as 5m", initial: "0" }];
  ask({
    title: "Send a test",
    text: `A new message with this content is scheduled on route ${route}. It has the header Punctual-Test.`,
    verb: "Send",
    fields,
    run: async ({ delay, ...values }) => {
      const content = Object.fromEntries(Object.entries(values).map(([name, text]) => [name, valueOf(name, text)]));
      const { headers } = content;
      content.headers = Array.isArray(headers)
        ? [...headers.filter(({ name }) => name !== TEST), { name: TEST, value: "true" }]
        : { ...headers, [TEST]: "true" };
      const { id } = await post(ofRoute(route, "/messages"), { ...content, delay });
      return `Scheduled as ${id}.`;
    },
  });
}
