// The view of a route's flows: the number of their messages that wait, and why.

import { pauseFlow, resumeFlow, rights } from "./actions.js";
import { flowName, get, ofRoute, usePoll } from "./api.js";
import { count, plural, Time } from "./format.js";
import { Pages, States } from "./messages.js";
import { Badge, Empty, link, Loading, messagePath, RoutePicker, Text, Trouble, usable } from "./parts.js";
import { html } from "./preact.js";

/** Flows of a page, the maximum of the API. */
const PAGE = 100;

const to = (route, cursor) => link("messages", { route, state: "flows", cursor });

export function Flows({ overview, query: { route: asked, cursor } }) {
  const names = usable(overview).filter((one) => one.waiting_flows !== undefined).map((one) => one.route);
  const route = asked ?? names[0];
  const stats = overview.routes?.find((one) => one.route === route);
  const { data, problem } = usePoll((signal) => (route ? get(ofRoute(route, "/flows"), { limit: PAGE, cursor }, signal) : null), [route, cursor]);
  const flows = data?.flows.toSorted((a, b) => Number(b.waiting) - Number(a.waiting));
  const can = rights(overview).admin;
  return html`
    <h1>Flows</h1>
    <div class="controls">
      <${RoutePicker} routes=${names} value=${route} onPick=${(name) => { location.hash = to(name); }} />
      <${States} route=${route} stats=${stats} state="flows" />
    </div>
    ${stats?.waiting_flows !== undefined && html`<p class="lead">Waiting for their flow: ${plural(stats.waiting_for_flow, "message")} of ${plural(stats.waiting_flows, "flow")}.</p>`}
    <${Trouble} problem=${problem} />
    ${!flows && !problem && html`<${Loading} />`}
    ${flows?.length === 0 && html`<${Empty}>No message waits for its flow or is in flight.</${Empty}>`}
    ${flows?.length > 0 && html`
      <ul class="lamps" aria-label="Flows">${flows.map((flow) => html`<${Flow} key=${flow.key} flow=${flow} route=${route} can=${can} />`)}</ul>`}
    ${(cursor || data?.cursor) && html`<p class="more">A page has ${PAGE} flows in the order of their keys, sorted by waiting messages.</p>`}
    <${Pages} cursor=${cursor} next=${data?.cursor} to=${(value) => to(route, value)} />`;
}

function Flow({ flow, route, can }) {
  const { key, next_slot: slot, held_by: holder, rate, burst, parallel, paused } = flow;
  const name = flowName(key);
  const reason = paused ? "paused" : flow.waits_for;
  const why = {
    paused: () => html`${flow.paused_at && html`<${Time} at=${flow.paused_at} far="only" />`}${flow.paused_by && html` by <${Text}>${flow.paused_by}</${Text}>`}${flow.note && html`: <${Text}>${flow.note}</${Text}>`}. `,
    order: () => "A message leaves after the one before it has ended. ",
    parallel: () => `${count(flow.in_flight)} of ${count(parallel)} are in flight. `,
  }[reason];
  const limits = [rate && `rate ${rate}`, rate && `burst ${count(burst)}`, parallel && `parallel ${count(parallel)}`].filter(Boolean);
  return html`
    <li>
      ${can && html`<button class="small right" onClick=${() => (paused ? resumeFlow : pauseFlow)(route, key)}>${paused ? "Resume" : "Pause"}<span class="hidden"> ${name}</span></button>`}
      <b><${Text}>${name}</${Text}></b> ${reason && html`<${Badge} kind=${paused ? "warn" : ""}>${reason}</${Badge}>`}
      ${" "}${count(flow.waiting)} waiting, ${count(flow.in_flight)} in flight
      <p class="more">${why?.()}${slot && html`Next slot: <${Time} at=${slot} />. `}${
        holder && html`Held by <a href="#/${messagePath(route, holder)}">${holder}</a>. `}${limits.length > 0 && `Limits: ${limits.join(", ")}.`}</p>
    </li>`;
}
