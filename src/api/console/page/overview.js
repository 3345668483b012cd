// The view of all routes: problems and activity.

import { pause, resume, rights } from "./actions.js";
import { Curve } from "./charts.js";
import { count, duration, plural, rate, Time } from "./format.js";
import { quantile, work } from "./history.js";
import { Badge, Empty, Fact, Lamp, link, sinkError, sinkLamp, sourceLamp, Text } from "./parts.js";
import { html } from "./preact.js";

/** A message that is overdue by more than this, in s, needs attention; as for `punctual status`. */
const OVERDUE = 60;

export function Overview({ overview }) {
  const { routes, instance, activity } = overview;
  const known = routes?.filter((route) => !route.error) ?? [];
  const sum = (name) => known.reduce((total, route) => total + BigInt(route[name]), 0n);
  const all = work(instance, null);
  const late = lateness(all, activity.lateness_bounds_seconds);
  const overdue = Math.max(0, ...known.map((route) => route.oldest_overdue_seconds));
  return html`
    <h1 class="hidden">Overview</h1>
    <${Attention} overview=${overview} />
    <dl class="figures">
      <${Fact} name="Delivered per second">${rate(all.delivered)}</${Fact}>
      <${Fact} name="Failed per second"><span class=${all.failed ? "bad" : ""}>${rate(all.failed)}</span></${Fact}>
      <${Fact} name="Late, p50 / p99"><span title=${late.over}>${late.text}</span></${Fact}>
      <${Fact} name="Pending">${routes ? count(sum("pending")) : "–"}</${Fact}>
      <${Fact} name="Dead letters"><span class=${sum("dead") ? "bad" : ""}>${routes ? count(sum("dead")) : "–"}</span></${Fact}>
      <${Fact} name="Oldest overdue">${overdue ? duration(overdue) : "none"}</${Fact}>
    </dl>
    <h2>Routes</h2>
    ${routes && !routes.length && html`<${Empty}>No route is configured.</${Empty}>`}
    ${!routes && html`<${Empty}>The numbers of the routes are in Redis, which does not reply.</${Empty}>`}
    <div class="tiles">${(routes ?? []).map((route) => html`<${Route} key=${route.route} route=${route} overview=${overview} />`)}</div>
    <div class="pair">
      <${Lamps} title="Sinks" things=${overview.sinks} lamp=${sinkLamp} />
      <${Lamps} title="Sources" things=${overview.sources} lamp=${sourceLamp} />
    </div>`;
}

/** p50 and p99, with their time window. */
function lateness({ late, seconds }, bounds) {
  const text = (share) => {
    const value = quantile(late, bounds, share);
    return value === Infinity ? `> ${duration(bounds.at(-1))}` : duration(value);
  };
  const over = seconds === null ? "since the start" : `in ${duration(Math.max(1, Math.round(seconds)))}`;
  return { text: late.at(-1) ? `${text(0.5)} / ${text(0.99)}` : "none", over };
}

/** The problems that `punctual status` would name, each with a link to the view to act in. */
function wrong({ routes, sinks, sources }) {
  const found = [];
  for (const sink of sinks) {
    const [state, text] = sinkLamp(sink);
    if (state === "bad" || state === "warn") {
      found.push([state, link("sinks"), `Sink ${sink.name}: ${text}.`, sinkError(sink)]);
    }
  }
  for (const source of sources) {
    if (source.state === "failing") found.push(["bad", link("sinks"), `Source ${source.name}: failing.`, source.last_error]);
  }
  for (const route of routes ?? []) {
    const of = { route: route.route };
    if (route.error) {
      found.push(["bad", link(""), `Route ${route.route} cannot be read.`, route.error]);
      continue;
    }
    if (route.paused) found.push(["warn", link("messages", of), `Route ${route.route} is paused.`, route.note]);
    else if (route.oldest_overdue_seconds > OVERDUE) {
      const text = `Route ${route.route}: the oldest message is overdue by ${duration(route.oldest_overdue_seconds)}.`;
      found.push(["bad", link("messages", of), text]);
    }
    if (route.dead) found.push(["bad", link("dead", of), `Route ${route.route}: ${plural(route.dead, "dead letter")}.`]);
  }
  return found;
}

function Attention({ overview }) {
  const found = wrong(overview);
  if (!found.length) {
    return overview.routes && html`<p class="well"><${Lamp} state="good">Nothing needs attention: no sink or source is down, no message is overdue or dead.</${Lamp}></p>`;
  }
  return html`
    <section class="attention" aria-label="Needs attention">
      <ul>${found.map(([state, href, text, more]) => html`
        <li key=${text}><a href=${href}><${Lamp} state=${state}>${text}</${Lamp}></a>${more && html` <${Text} class="more">${more}</${Text}>`}</li>`)}
      </ul>
    </section>`;
}

function Route({ route, overview }) {
  if (route.error) {
    return html`<article class="tile"><h3>${route.route}</h3><p class="trouble">${route.error}</p></article>`;
  }
  const { activity, instance, sinks } = overview;
  const name = route.route;
  const done = work(instance, name);
  const late = lateness(done, activity.lateness_bounds_seconds);
  const sink = sinks.find((one) => one.name === route.sink);
  const [state] = sink ? sinkLamp(sink) : ["idle"];
  const can = rights(overview).admin && route.sink !== null;
  const number = (label, value, to, kind = "") => html`
    <a class="number ${kind}" href=${to}><b>${count(value)}</b><span>${label}</span></a>`;
  return html`
    <article class="tile ${route.paused ? "paused" : ""}" aria-label="Route ${name}">
      <header>
        <h3>${name}</h3>
        ${route.sink === null ? html`<${Badge} kind="warn">not configured</${Badge}>` : html`<a class="to" href=${link("sinks")}><${Lamp} state=${state}>${route.sink}</${Lamp}></a>`}
        ${can && html`<button class="small" onClick=${() => (route.paused ? resume(name) : pause(name))}>${route.paused ? "Resume" : "Pause"}<span class="hidden"> ${name}</span></button>`}
      </header>
      ${route.paused && html`
        <p class="pause"><${Badge} kind="warn">paused</${Badge}> ${route.paused_at && html`<${Time} at=${route.paused_at} far="only" />`}
          ${route.paused_by && html` by <${Text}>${route.paused_by}</${Text}>`}${route.note && html`: <${Text}>${route.note}</${Text}>`}</p>`}
      ${route.window?.open === false && html`
        <p class="pause"><${Badge} kind="warn">closed</${Badge}> until <${Time} at=${route.window.until} /></p>`}
      <${Curve} points=${done.points} label="Deliveries of ${name}" />
      <p class="rates"><span><b>${rate(done.delivered)}</b> delivered/s</span><span class=${done.failed ? "bad" : ""}><b>${rate(done.failed)}</b> failed/s</span></p>
      <div class="numbers">
        ${number("pending", route.pending, link("messages", { route: name, state: "pending" }))}
        ${number("retrying", route.retrying, link("messages", { route: name, state: "retrying" }), route.retrying ? "warn" : "")}
        ${number("in flight", route.unack, link("messages", { route: name, state: "unack" }))}
        ${number("dead", route.dead, link("dead", { route: name }), route.dead ? "bad" : "")}
      </div>
      <dl class="lines">
        <${Fact} name="Late, p50 / p99 ${late.over}">${late.text}</${Fact}>
        <${Fact} name="Oldest overdue"><span class=${route.oldest_overdue_seconds > OVERDUE ? "bad" : ""}>${route.oldest_overdue_seconds ? duration(route.oldest_overdue_seconds) : "none"}</span></${Fact}>
        ${route.waiting_for_flow !== undefined && html`<${Fact} name="Wait for their flow"><a href=${link("messages", { route: name, state: "flows" })}>${count(route.waiting_for_flow)}</a></${Fact}>`}
        <${Fact} name="Next due">${route.next_due ? html`<${Time} at=${route.next_due} far="only" />` : "none"}</${Fact}>
      </dl>
    </article>`;
}

function Lamps({ title, things, lamp }) {
  return html`
    <section aria-label=${title}>
      <h2>${title}</h2>
      ${!things.length && html`<${Empty}>None is configured.</${Empty}>`}
      <ul class="lamps">${things.map((thing) => {
        const [state, text] = lamp(thing);
        const error = lamp === sinkLamp ? sinkError(thing) : thing.last_error;
        return html`
          <li key=${thing.name}>
            <a href=${link("sinks")}>${thing.name}</a> <span class="muted">${thing.type}</span>
            <span class="right"><${Lamp} state=${state}>${text}</${Lamp}> ${thing.since && html`<span class="muted">since <${Time} at=${thing.since} plain /></span>`}</span>
            ${state !== "good" && error && html`<${Text} tag="p" class="more">${error}</${Text}>`}
          </li>`;
      })}</ul>
    </section>`;
}
