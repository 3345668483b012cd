// The actions of an operator, each with its confirmation dialog. The token's rights decide which actions are shown.

import { call, flowName, ofFlow, ofMessage, ofRoute, ofSchedule, post } from "./api.js";
import { ask } from "./dialog.js";
import { instant, local, plural } from "./format.js";

/** Messages of one call: the API takes at most this many ids, and progress is shown between calls. */
const PER_CALL = 1000;

/** The token's rights to act. */
export const rights = (overview) => {
  const given = overview.token.rights;
  return { schedule: given.includes("schedule"), admin: given.includes("admin") };
};

/** The number of dead letters of `selection` (a filter, `{all: true}` or `{ids, until}`), and the selection of just these. */
async function counted(route, verb, selection) {
  let body = selection, all = 0, until;
  for (;;) {
    const reply = await post(ofRoute(route, `/dead/${verb}`), { ...body, dry_run: true });
    all += Number(reply.count);
    until ??= reply.until;
    if (!reply.cursor) break;
    body = { ...body, cursor: reply.cursor };
  }
  const { all: _, ...filter } = selection;
  // Excludes messages that died later, or died again: the count does not include that death.
  return { count: all, selection: until ? { until, ...filter } : selection };
}

async function actOnDead(route, verb, { count, selection }, more, progress) {
  let done = 0, cursor;
  while (done < count) {
    const limit = Math.min(count - done, PER_CALL);
    const reply = await post(ofRoute(route, `/dead/${verb}`), { ...selection, ...more, limit, ...(cursor && { cursor }) });
    done += Number(reply.count);
    cursor = reply.cursor;
    progress(done);
    if (!reply.more || (!cursor && !Number(reply.count))) break;
  }
  return done;
}

const actionOnDead = (verb, title, done, texts) => (route, selection, what, onDone = () => {}, filter = what) =>
  ask({
    ...texts(route),
    title: `${title} ${what}`,
    filter,
    verb: title,
    noun: (number) => (Number(number) === 1 ? "dead letter" : "dead letters"),
    count: () => counted(route, verb, selection),
    run: async (values, found, progress) => {
      const number = await actOnDead(route, verb, found, values, progress);
      onDone();
      return `${done} ${plural(number, "dead letter")} of ${route}.`;
    },
  });

/** The `until` of a selection from loaded dead messages: those that died again since then died later than all of them. */
export const untilLoaded = (messages) => Math.max(...messages.map(({ died_at: at }) => instant(at))) + 1;

/** `selection`: a filter, `{all: true}` or `{ids, until}`; `what` names it in short, `filter` in full. */
export const redrive = actionOnDead("redrive", "Redrive", "Redrove", (route) => ({
  text: `They become due now on route ${route}, with 0 attempts.`,
  fields: [{ name: "expiry", label: "Their time of expiry: drop, keep, or a duration from now such as 5m", initial: "drop" }],
}));

export const purge = actionOnDead("purge", "Purge", "Purged", (route) => ({
  text: `They are deleted from route ${route} for good.`,
  isDanger: true,
  typed: route,
}));

/** The dialog options of a single call without a count. `done`: the text after success. */
const simple = (verb, title, text, path, done, more = {}) =>
  ask({
    title,
    text,
    verb,
    run: async (values) => {
      await post(path, values.note ? values : undefined);
      return done;
    },
    ...more,
  });

export const deliver = (route, id) =>
  simple("Deliver now", "Deliver now", `${id} becomes due now, whatever its time.`, ofMessage(route, id, "/deliver"), `${id} is due now.`);

const NOTE = { fields: [{ name: "note", label: "Note: why, for others who see it", maxlength: 500 }] };

export const pause = (route) =>
  simple("Pause", `Pause ${route}`, "The route accepts messages and delivers none, on every instance, until it is resumed.",
    ofRoute(route, "/pause"), `${route} is paused.`, NOTE);

export const resume = (route) =>
  simple("Resume", `Resume ${route}`, "Messages that are due leave at once.", ofRoute(route, "/resume"), `${route} is resumed.`);

export const pauseFlow = (route, key) =>
  simple("Pause", `Pause ${flowName(key)}`, `Messages of this flow of ${route} are accepted and none is delivered, on every instance, until it is resumed.`,
    ofFlow(route, key, "/pause"), `${flowName(key)} is paused.`, NOTE);

export const resumeFlow = (route, key) =>
  simple("Resume", `Resume ${flowName(key)}`, "Due messages leave as its limits allow.", ofFlow(route, key, "/resume"), `${flowName(key)} is resumed.`);

export const runSchedule = (name) =>
  simple("Run now", `Run ${name}`, "An occurrence is sent now. The next one stays where it is.", ofSchedule(name, "/run"), `${name} runs now.`);

export const pauseSchedule = (name) =>
  simple("Pause", `Pause ${name}`, "No occurrence is sent until it is resumed.", ofSchedule(name, "/pause"), `${name} is paused.`);

export const resumeSchedule = (name) =>
  simple("Resume", `Resume ${name}`, "Occurrences that it missed are sent as its rule says.", ofSchedule(name, "/resume"), `${name} is resumed.`);

export function move(route, id) {
  ask({
    title: "Move to another time",
    text: `${id} becomes due at the new time. Fill in one of both.`,
    verb: "Move",
    fields: [
      { name: "delay", label: "Delay from now, such as 5m or 1h 30m", initial: "1h" },
      { name: "at", label: "Or a time in your zone", type: "datetime-local", step: 1 },
    ],
    run: async ({ delay, at }) => {
      const body = at ? { deliver_at: new Date(at).toISOString() } : { delay };
      const reply = await call("PATCH", ofMessage(route, id), { body });
      const due = instant(reply.deliver_at);
      return `${id} is due ${Number.isNaN(due) ? reply.deliver_at : local(due)}.`;
    },
  });
}

export function cancel(route, id, canCount, onDone) {
  ask({
    title: "Cancel the message",
    text: `${id} is deleted from route ${route} and will not be delivered.`,
    verb: "Cancel the message",
    isDanger: true,
    typed: route,
    noun: (number) => `pending ${Number(number) === 1 ? "message" : "messages"}`,
    // The dry run needs the right `admin`; the call itself needs `schedule`.
    count: canCount ? () => post(ofRoute(route, "/purge"), { ids: [id], dry_run: true }) : async () => ({ count: 1 }),
    run: async () => {
      await call("DELETE", ofMessage(route, id));
      onDone();
      return `${id} is cancelled.`;
    },
  });
}
