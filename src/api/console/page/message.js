// The view of one message, with the reason why it waits.

import { flowName, get, ofMessage, usePoll } from "./api.js";
import { cancel, deliver, move, purge, redrive, rights, untilLoaded } from "./actions.js";
import { edit, test } from "./edit.js";
import { count, instant, Time } from "./format.js";
import { Badge, Fact, Lamp, link, Loading, sinkError, sinkLamp, Text, Trouble } from "./parts.js";
import { Payload } from "./payload.js";
import { html } from "./preact.js";
import { Timeline } from "./timeline.js";

const STATES = { pending: "pending", unack: "in flight", dead: "dead", delivered: "delivered", cancelled: "cancelled", expired: "expired", replaced: "replaced" };

export function Message({ overview, route, id }) {
  const { data: message, problem } = usePoll((signal) => get(ofMessage(route, id), {}, signal), [route, id]);
  const isGone = problem?.status === 404;
  const isOver = message?.ended_at !== undefined;
  return html`
    <p class="path"><a href=${link("messages", { route })}>Messages of ${route}</a></p>
    <h1 class="title"><${Text}>${id}</${Text}> ${message && !isGone && html`<${Badge} kind=${message.state === "dead" ? "bad" : ""}>${message.last_error && message.state === "pending" && message.attempts ? "retrying" : STATES[message.state]}</${Badge}>`}</h1>
    ${!(isGone && message) && html`<${Trouble} problem=${problem} />`}
    ${isGone && message && html`<p class="muted">It was delivered, cancelled or purged. Below is what was last seen.</p>`}
    ${!message && !problem && html`<${Loading} />`}
    ${isOver && html`
      <p>${message.state === "dead" || message.state === "expired" ? html`It became a dead letter, which was deleted` : html`It was ${STATES[message.state]}`}: <${Time} at=${message.ended_at} />.</p>
      <${Timeline} message=${message} />`}
    ${message && !isOver && html`
      ${!isGone && html`<${Waits} message=${message} overview=${overview} /><${Actions} message=${message} overview=${overview} />`}
      <div class="pair">
        <${Facts} message=${message} overview=${overview} />
        <${Details} message=${message} />
      </div>
      <${Timeline} message=${message} />
      <${Payload} key=${`${route} ${id}`} message=${message} />`}`;
}

/** The reason why the message is not delivered yet, with the known cause. */
function Waits({ message, overview }) {
  const stats = overview.routes?.find((route) => route.route === message.route);
  const next = html`<${Time} at=${message.deliver_at} />`;
  const reasons = {
    due: () => html`It waits for its time: ${next}`,
    retry: () => html`Attempt ${count(message.attempts)} failed. It waits for the next one: ${next}`,
    sink: () => {
      const { domain, since, error } = message.down ?? {};
      return html`It waits for ${domain && html`<${Text}>${domain}</${Text}> of `}<a href=${link("sinks")}>sink ${stats?.sink}</a>, which is down ${since && html`since <${Time} at=${since} />`}. No attempt counts.${error && html` <${Text} tag="span" class="more">${error}</${Text}>`}`;
    },
    paused: () => html`Its route is paused${stats?.paused_by && html` by <${Text}>${stats.paused_by}</${Text}>`}${stats?.paused_at && html`, <${Time} at=${stats.paused_at} far="only" />`}${stats?.note && html`: <${Text}>${stats.note}</${Text}>`}.`,
    window: () => html`Its route is closed until <${Time} at=${stats?.window?.until} />.`,
    flow: () => html`It is due, and waits for its <a href=${link("messages", { route: message.route, state: "flows" })}>flow</a>.`,
    capacity: () => "It is due, and waits until an instance has capacity.",
  };
  const text = {
    unack: () => html`It is in flight: an instance is sending it. Its lease ends: ${next}`,
    dead: () => "It is a dead letter. Nothing delivers it until it is redriven.",
    pending: reasons[message.waits_for] ?? (() => ""),
  }[message.state];
  return html`<p class="waits ${message.state === "dead" ? "bad" : ""}"><b>Why it waits</b> ${text?.()}</p>`;
}

function Actions({ message, overview }) {
  const { route, id, state } = message;
  const chosen = () => ({ ids: [id], until: untilLoaded([message]) });
  const can = rights(overview);
  const back = () => {
    location.hash = link("messages", { route });
  };
  const button = (name, act, kind = "") => html`<button class=${kind} onClick=${act}>${name}</button>`;
  const buttons = [];
  if (can.schedule && state !== "dead") {
    buttons.push(button("Deliver now", () => deliver(route, id), "primary"), button("Move", () => move(route, id)));
    buttons.push(button("Cancel", () => cancel(route, id, can.admin, back), "danger"));
  }
  if (can.admin && state === "dead") {
    buttons.push(button("Redrive", () => redrive(route, chosen(), id), "primary"));
    if (can.schedule && !message.unreadable) buttons.push(button("Edit and send again", () => edit(route, message)));
    buttons.push(button("Purge", () => purge(route, chosen(), id, back), "danger"));
  }
  if (can.schedule && !message.unreadable) buttons.push(button("Send a test", () => test(route, message)));
  return buttons.length > 0 && html`<div class="buttons left">${buttons}</div>`;
}

function Facts({ message, overview }) {
  const name = overview.routes?.find((route) => route.route === message.route)?.sink;
  const sink = overview.sinks.find((one) => one.name === name);
  const [state, text] = sink ? sinkLamp(sink) : [];
  const { max_attempts: most, expires_at: expires, origin } = message;
  return html`
    <section class="panel" aria-label="Times and attempts"><dl class="facts">
      <${Fact} name="Due"><${Time} at=${message.due} /></${Fact}>
      ${message.next_attempt_at && instant(message.next_attempt_at) !== instant(message.due) && html`<${Fact} name="Next attempt"><${Time} at=${message.next_attempt_at} /></${Fact}>`}
      <${Fact} name="Accepted"><${Time} at=${message.accepted_at} />${message.scheduled_by && html` by <${Text}>${message.scheduled_by}</${Text}>`}</${Fact}>
      <${Fact} name="Attempts">${count(message.attempts)}${most !== undefined && ` of ${count(most)}`}</${Fact}>
      ${message.died_at && html`<${Fact} name="Died"><${Time} at=${message.died_at} /></${Fact}>`}
      ${message.last_error && html`<${Fact} name="Last error"><${Text} tag="span" class="more">${message.last_error}</${Text}> <${Time} at=${message.last_error_at} /></${Fact}>`}
      ${sink && html`<${Fact} name="Sink"><a href=${link("sinks")}><${Lamp} state=${state}>${name}: ${text}</${Lamp}></a>${state !== "good" && sinkError(sink) && html` <${Text} tag="span" class="more">${sinkError(sink)}</${Text}>`}${state === "bad" && sink.since && html` since <${Time} at=${sink.since} />`}</${Fact}>`}
      ${expires !== undefined && html`<${Fact} name="Expires"><${Time} at=${String(expires)} /></${Fact}>`}
      ${origin && html`<${Fact} name="Origin"><${Values} values=${origin} /></${Fact}>`}
    </dl></section>`;
}

function Details({ message }) {
  const headers = headersOf(message.headers ?? {});
  return html`
    <section class="panel" aria-label="Headers and properties"><dl class="facts">
      <${Fact} name="Content type"><${Text}>${message.content_type ?? "none"}</${Text}></${Fact}>
      <${Fact} name="Key"><${Text}>${message.key ?? (message.key_base64 === undefined ? "none" : `${message.key_base64} (base64)`)}</${Text}></${Fact}>
      ${message.flow !== undefined && html`<${Fact} name="Flow"><${Text}>${flowName(message.flow)}</${Text}></${Fact}>`}
      ${message.group && html`<${Fact} name="Group"><a href=${link("messages", { route: message.route, group: message.group })}>${message.group}</a></${Fact}>`}
      <${Fact} name="Headers">${headers.length ? html`<${Rows} rows=${headers} />` : "none"}</${Fact}>
      ${message.trace_id && html`<${Fact} name="Trace"><${Text}>${message.trace_id}</${Text}></${Fact}>`}
      ${message.properties && html`<${Fact} name="Properties"><${Values} values=${message.properties} /></${Fact}>`}
    </dl></section>`;
}

/** Nested values as JSON; large integers unchanged. */
const shown = (value) => (typeof value === "object" && value !== null
  ? JSON.stringify(value, (_, inner) => (typeof inner === "bigint" ? String(inner) : inner))
  : String(value));

/** Name and value of each header in their order; a value that is not text has its type. */
const headersOf = (headers) => (Array.isArray(headers)
  ? headers.map(({ name, type = "string", value }) => [name, type === "string" ? value : type === "null" ? "null" : `${shown(value)} (${type})`])
  : Object.entries(headers));

const Values = ({ values }) => html`<${Rows} rows=${Object.entries(values)} />`;

const Rows = ({ rows }) => html`
  <table class="values"><tbody>${rows.map(([name, value], n) => html`
    <tr key=${n}><th scope="row"><${Text}>${name}</${Text}></th><td><${Text}>${shown(value)}</${Text}></td></tr>`)}</tbody></table>`;
