// The view of all routes: problems and activity.

import { pause, resume, rights } from "./actions.js";
import { Curve } from "./charts.js";
import { count, duration, plural, rate, Time } from "./format.js";
import { quantile, work } from "./history.js";
import { Hours, Spark, useHours } from "./hours.js";
import { Badge, Empty, Fact, Lamp, link, sinkError, sinkLamp, sourceLamp, Text } from "./parts.js";
import { html } from "./preact.js";

/** A message that is overdue by more than this, in s, needs attention; as for `punctual status`. */
const OVERDUE = 60;

/** Routes from which on the page is a table, and maximum number of cards. */
const CARDS = 12;
const MOST_CARDS = 24;
/** Lines of a list that are shown at first. */
const FEW = 8;

export function Overview({ overview, query }) {
  const { routes, instance, activity } = overview;
  const hours = useHours(query.route ?? null).data;
  if (query.route) return html`<${One} overview=${overview} name=${query.route} hours=${hours} />`;
  const known = routes?.filter((route) => !route.error) ?? [];
  const sum = (name) => known.reduce((total, route) => total + BigInt(route[name]), 0n);
  const all = work(instance, null);
  const late = lateness(all, activity.lateness_bounds_seconds);
  const overdue = Math.max(0, ...known.map((route) => route.oldest_overdue_seconds));
  const as = query.as ?? (routes?.length > CARDS ? "table" : "cards");
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
    <h2>Last 24 hours</h2>
    <${Hours} hours=${hours} pending=${routes ? sum("pending") : undefined} />
    <h2>Routes</h2>
    ${routes && !routes.length && html`<${Empty}>No route is configured.</${Empty}>`}
    ${!routes && html`<${Empty}>The numbers of the routes are in Redis, which does not reply.</${Empty}>`}
    ${routes?.length > 0 && html`<${Routes} overview=${overview} query=${query} as=${as} sparks=${hours?.sparks ?? {}} />`}
    <div class="pair">
      <${Lamps} title="Sinks" things=${overview.sinks} lamp=${sinkLamp} />
      <${Lamps} title="Sources" things=${overview.sources} lamp=${sourceLamp} />
    </div>`;
}

/** One route: its card and its hours. */
function One({ overview, name, hours }) {
  const route = overview.routes?.find((one) => one.route === name);
  return html`
    <p class="path"><a href=${link("")}>Overview</a></p>
    <h1 class="title">${name}</h1>
    <h2 class="hidden">Now</h2>
    ${route ? html`<${Route} route=${route} overview=${overview} />` : html`<${Empty}>There is no such route, or Redis does not reply.</${Empty}>`}
    <h2>Last 24 hours</h2>
    <${Hours} hours=${hours} pending=${route?.pending} />`;
}

/** Columns of the table: key, title, and the value to sort by. The largest comes first. */
const COLUMNS = [
  ["route", "Route"], ["day", "24 hours"],
  ["delivered", "Delivered/s"], ["failed", "Failed/s"], ["late", "Late, p99"],
  ["pending", "Pending"], ["retrying", "Retrying"], ["unack", "In flight"], ["dead", "Dead"], ["overdue", "Overdue"],
];

/** The numbers of a route in the table. `trouble`: how much it needs attention. */
function row(route, { activity, instance, sinks }) {
  if (route.error) return { route: route.route, of: route, trouble: 6 };
  const done = work(instance, route.route);
  const { pending, retrying, unack, dead, oldest_overdue_seconds: overdue } = route;
  const state = sinkLamp(sinks.find((one) => one.name === route.sink) ?? { down_domains: [] })[0];
  const trouble = !route.paused && overdue > OVERDUE ? 5 : state === "bad" ? 4 : dead ? 3 : state === "warn" || route.paused || done.failed ? 2 : retrying ? 1 : 0;
  return {
    route: route.route, of: route, state, trouble, pending, retrying, unack, dead, overdue,
    delivered: done.delivered, failed: done.failed, late: quantile(done.late, activity.lateness_bounds_seconds, 0.99),
  };
}

const byName = (a, b) => (a.route < b.route ? -1 : 1);
const larger = (key) => (a, b) => Number(b[key] ?? -1) - Number(a[key] ?? -1) || byName(a, b);

function Routes({ overview, query, as, sparks }) {
  const { sort = "trouble", part = "" } = query;
  const found = overview.routes.filter(({ route, sink }) => route.includes(part) || sink?.includes(part)).map((route) => row(route, overview));
  found.sort(sort === "route" ? byName : larger(sort));
  const to = (more) => link("", { as: query.as, part, sort: query.sort, ...more });
  const shown = as === "cards" ? found.slice(0, MOST_CARDS) : found;
  const isLong = overview.routes.length > CARDS;
  return html`
    ${isLong && html`
      <div class="controls">
        <label class="field">Route or sink contains
          <input value=${part} onInput=${(event) => location.replace(to({ part: event.target.value }))} autocomplete="off" spellcheck="false" /></label>
        <label class="field">Sort by<select value=${sort} onChange=${(event) => location.replace(to({ sort: event.target.value }))}>
          <option value="trouble">Trouble</option>${COLUMNS.filter(([key]) => key !== "day").map(([key, title]) => html`<option value=${key}>${title}</option>`)}</select></label>
        <nav class="choice" aria-label="Form">${["table", "cards"].map((form) => html`
          <a href=${to({ as: form })} aria-current=${form === as ? "true" : undefined}>${form === "table" ? "Table" : "Cards"}</a>`)}</nav>
        <span class="muted">${count(found.length)} of ${plural(overview.routes.length, "route")}</span>
      </div>`}
    ${as === "table" && found.length > 0 && html`
      <table class="list routes" aria-label="Routes">
        <thead><tr>${COLUMNS.map(([key, title]) => html`
          <th class=${key} scope="col" aria-sort=${key === sort ? (key === "route" ? "ascending" : "descending") : undefined}>${
            key === "day" ? title : html`<a href=${to({ sort: key })}>${title}</a>`}</th>`)}</tr></thead>
        <tbody>${found.map((one) => html`<${Row} key=${one.route} row=${one} spark=${sparks[one.route]} />`)}</tbody>
      </table>`}
    ${as === "cards" && html`<div class="tiles">${shown.map(({ of }) => html`<${Route} key=${of.route} route=${of} overview=${overview} />`)}</div>`}
    ${found.length > shown.length && html`<p class="muted">and ${count(found.length - shown.length)} more: the table has all.</p>`}
    ${!found.length && html`<${Empty}>No name contains this.</${Empty}>`}`;
}

function Row({ row: { route, of, state, trouble, pending, retrying, unack, dead, overdue, delivered, failed, late }, spark }) {
  const number = (kind, value, to, level) => html`<td class=${kind}>${value ? html`<a class=${level} href=${to}>${count(value)}</a>` : html`<span class="muted">0</span>`}</td>`;
  const listed = (name) => link("messages", { route, state: name });
  const name = html`<td class="route"><a href=${link("", { route })}><${Lamp} state=${trouble > 2 ? "bad" : trouble ? "warn" : "good"}>${route}</${Lamp}></a>${
    of.paused ? html` <${Badge} kind="warn">paused</${Badge}>` : of.window?.open === false ? html` <${Badge}>closed</${Badge}>` : state === "bad" ? html` <${Badge} kind="bad">sink down</${Badge}>` : of.sink === null ? html` <${Badge}>not configured</${Badge}>` : ""}</td>`;
  if (of.error) return html`<tr>${name}<td class="error" colspan=${COLUMNS.length - 1}><${Text}>${of.error}</${Text}></td></tr>`;
  return html`
    <tr>${name}<td class="day"><${Spark} spark=${spark} /></td>
      <td class="delivered">${rate(delivered)}</td><td class="failed"><span class=${failed ? "bad" : ""}>${rate(failed)}</span></td>
      <td class="late">${late === undefined ? html`<span class="muted">–</span>` : late === Infinity ? "> 1 h" : duration(late)}</td>
      ${number("pending", pending, listed("pending"))}${number("retrying", retrying, listed("retrying"), "warn")}
      ${number("unack", unack, listed("unack"))}${number("dead", dead, link("dead", { route }), "bad")}
      <td class="overdue"><span class=${overdue > OVERDUE ? "bad" : "muted"}>${overdue ? duration(overdue) : "none"}</span></td></tr>`;
}

/** A list of which the first lines are open. */
function Few({ children, tag = "ul", ...rest }) {
  const more = children.length - FEW;
  if (more < 2) return html`<${tag} ...${rest}>${children}</${tag}>`;
  return html`<${tag} ...${rest}>${children.slice(0, FEW)}</${tag}>
    <details><summary>and ${count(more)} more</summary><${tag} ...${rest}>${children.slice(FEW)}</${tag}></details>`;
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
      <${Few}>${found.map(([state, href, text, more]) => html`
        <li key=${text}><a href=${href}><${Lamp} state=${state}>${text}</${Lamp}></a>${more && html` <${Text} class="more">${more}</${Text}>`}</li>`)}</${Few}>
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
        <h3><a href=${link("", { route: name })}>${name}</a></h3>
        ${route.sink === null ? html`<${Badge} kind="warn">not configured</${Badge}>` : html`<a class="to" href=${link("sinks")}><${Lamp} state=${state}>${route.sink}</${Lamp}></a>`}
        ${can && html`<button class="small" onClick=${() => (route.paused ? resume(name) : pause(name))}>${route.paused ? "Resume" : "Pause"}<span class="hidden"> ${name}</span></button>`}
      </header>
      ${route.paused && html`
        <p class="pause"><${Badge} kind="warn">paused</${Badge}> ${route.paused_at && html`<${Time} at=${route.paused_at} far="only" />`}
          ${route.paused_by && html` by <${Text}>${route.paused_by}</${Text}>`}${route.note && html`: <${Text}>${route.note}</${Text}>`}</p>`}
      ${route.window?.open === false && html`
        <p class="pause"><${Badge} kind="warn">closed</${Badge}> until <${Time} at=${route.window.until} /></p>`}
      <${Curve} points=${done.points()} label="Deliveries of ${name}" />
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

/** Those that are down come first. */
const ORDER = { bad: 0, warn: 1, idle: 2, good: 3 };

function Lamps({ title, things, lamp }) {
  return html`
    <section aria-label=${title}>
      <h2>${title}</h2>
      ${!things.length && html`<${Empty}>None is configured.</${Empty}>`}
      <${Few} class="lamps">${[...things].sort((a, b) => ORDER[lamp(a)[0]] - ORDER[lamp(b)[0]]).map((thing) => {
        const [state, text] = lamp(thing);
        const error = lamp === sinkLamp ? sinkError(thing) : thing.last_error;
        return html`
          <li key=${thing.name}>
            <a href=${link("sinks")}>${thing.name}</a> <span class="muted">${thing.type}</span>
            <span class="right"><${Lamp} state=${state}>${text}</${Lamp}> ${thing.since && html`<span class="muted">since <${Time} at=${thing.since} plain /></span>`}</span>
            ${state !== "good" && error && html`<${Text} tag="p" class="more">${error}</${Text}>`}
          </li>`;
      })}</${Few}>
    </section>`;
}
