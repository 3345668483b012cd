// Charts of the last 24 hours. Each instance has those of its own deliveries; the page adds up the instances that replied to it.

import { get, now, ofRoute, usePoll } from "./api.js";
import { count, duration, instant, local, Time } from "./format.js";
import { instanceKey, seen } from "./history.js";
import { Text } from "./parts.js";
import { html, useMemo } from "./preact.js";

/** Pause between two calls, in ms, and while an instance that replies in turn has not sent its own. */
const EVERY = 20_000;
const SOON = 2000;
/** Calls in a row for instances that are missing. */
const TRIES = 3;
/** Maximum number of instances that are remembered: those that ended are kept for a day. */
const MOST = 32;
const DAY = 86_400_000;
/** Minimum time of a chart, in ms. */
const HOUR = 3_600_000;
const [WIDTH, HEIGHT] = [288, 60];

/** Replies by route, then by instance. */
const replies = new Map();

function remember(route, reply) {
  const known = replies.get(route) ?? new Map();
  replies.set(route, known);
  const key = instanceKey(reply.instance);
  known.delete(key);
  known.set(key, { ...reply, at: now() });
  for (const [other, { at }] of known) {
    if (known.size > MOST || at < now() - DAY) known.delete(other);
  }
  return merged([...known.values()]);
}

/** Adds `values`, which begin at `first`, to `sums`, which begin at `start`. */
function add(sums, start, step, first, values, both) {
  const from = Math.round((instant(first) - start) / step);
  values.forEach((value, n) => {
    if (value !== null && from + n >= 0 && from + n < sums.length) sums[from + n] = sums[from + n] === null ? value : both(sums[from + n], value);
  });
}

const plus = (a, b) => a + b;

/** The sum of the replies; of p99 and pending the largest. */
function merged(all) {
  const step = all[0].step_seconds * 1000;
  const end = Math.max(...all.map(({ first, delivered }) => instant(first) + delivered.length * step));
  const start = Math.min(end - HOUR, ...all.map(({ first }) => instant(first)));
  const [length, long] = [Math.round((end - start) / step), (all[0].route_step_seconds ?? 0) * 1000];
  const sums = (name, both) => {
    const values = Array(length).fill(null);
    for (const reply of all) add(values, start, step, reply.first, reply[name], both);
    return values;
  };
  const sum = {
    start, step, instances: all,
    delivered: sums("delivered", plus), failed: sums("failed", plus), late: sums("p99_seconds", Math.max), pending: sums("pending", Math.max),
    sparks: {},
  };
  if (!long) return sum;
  const begin = Math.floor((end - 1) / long) * long - DAY;
  for (const name of new Set(all.flatMap(({ routes }) => Object.keys(routes)))) {
    const [delivered, failed] = ["delivered", "failed"].map((kind) => {
      const values = Array(DAY / long + 1).fill(0);
      for (const { routes } of all) if (routes[name]) add(values, begin, long, routes[name].first, routes[name][kind], plus);
      return values;
    });
    const top = Math.max(1, ...delivered, ...failed);
    sum.sparks[name] = {
      area: steps(delivered, top, 98, 20, true), failed: failed.some(Boolean) && steps(failed, top, 98, 20),
      label: `${count(delivered.reduce(plus))} delivered and ${count(failed.reduce(plus))} failed in 24 hours`,
    };
  }
  return sum;
}

/** A path of steps. Values that are null leave a gap. */
function steps(values, top, width, height, isClosed) {
  const x = (n) => ((n * width) / values.length).toFixed(1);
  const y = (value) => (height - 1 - (value / top) * (height - 3)).toFixed(1);
  const end = (n) => `H${x(n)}${isClosed ? `V${height}Z` : ""}`;
  let path = "", last = null;
  values.forEach((value, n) => {
    if (value === last) return;
    if (value === null) path += end(n);
    else if (last === null) path += isClosed ? `M${x(n)} ${height}V${y(value)}` : `M${x(n)} ${y(value)}`;
    else path += `H${x(n)}V${y(value)}`;
    last = value;
  });
  return last === null ? path : path + end(values.length);
}

/** Whether an instance that replies in turn has not sent its chart lately. */
const isMissing = (route) => [...replies.get(route)?.values() ?? []].filter(({ at }) => at > now() - 1.5 * EVERY).length < seen();

/** `route`: null for all routes of the token. */
export function useHours(route) {
  const load = async (signal) => {
    let hours;
    // Calls that follow at once reach other instances.
    for (let n = 0; n < TRIES && (!hours || isMissing(route)); n += 1) {
      hours = remember(route, await get(route === null ? "charts" : ofRoute(route, "/chart"), {}, signal));
    }
    return hours;
  };
  return usePoll(load, [route], () => (isMissing(route) ? SOON : EVERY));
}

export const Spark = ({ spark }) => spark && html`
  <svg class="curve" viewBox="0 0 98 20" preserveAspectRatio="none" role="img" aria-label=${spark.label}><title>${spark.label}</title>
    <path class="area" d=${spark.area} />${spark.failed && html`<path class="failed" d=${spark.failed} />`}</svg>`;

function Plot({ title, values, over, top, text, times, kind }) {
  return html`
    <figure><figcaption>${title} <span class="muted">${text}</span></figcaption>
      <svg class="curve" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}, last 24 hours: ${text}">
        <line class="ground" x1="0" x2=${WIDTH} y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
        ${kind === "area" && html`<path class="area" d=${steps(values, top, WIDTH, HEIGHT, true)} />`}
        <path class="line" d=${steps(values, top, WIDTH, HEIGHT)} />
        ${over && html`<path class="failed" d=${steps(over, top, WIDTH, HEIGHT)} />`}
      </svg>
      <div class="ticks" aria-hidden="true">${times.map((time) => html`<span>${time}</span>`)}</div></figure>`;
}

const late = (seconds) => (seconds >= 3600 ? `> ${duration(3600)}` : duration(seconds));

/** `pending`: the number now. */
export function Hours({ hours, pending }) {
  return useMemo(() => hours && html`<${Plots} hours=${hours} pending=${pending} />`, [hours]);
}

function Plots({ hours, pending }) {
  const { start, step, delivered, failed, instances } = hours;
  const held = hours.pending.with(-1, pending === undefined ? hours.pending.at(-1) : Number(pending));
  const most = (values) => Math.max(0, ...values);
  const hour = (at) => local(at).replace(/:\d\d$/, "");
  const times = [start, start + (delivered.length * step) / 2, start + delivered.length * step].map(hour);
  const plot = { times };
  const minutes = duration(step / 1000);
  return html`
    <section class="panel" aria-label="Last 24 hours">
      <div class="plots">
        <${Plot} ...${plot} title="Delivered" kind="area" values=${delivered} over=${most(failed) > 0 && failed} top=${Math.max(1, most(delivered), most(failed))}
          text="${count(delivered.reduce(plus))}, at most ${count(most(delivered))} in ${minutes}; ${count(failed.reduce(plus))} failed" />
        <${Plot} ...${plot} title="Late, p99" values=${hours.late} top=${most(hours.late) || 1} text=${most(hours.late) ? `at most ${late(most(hours.late))}` : "none"} />
        <${Plot} ...${plot} title="Pending" values=${held} top=${most(held) || 1} text="at most ${count(most(held))}" />
      </div>
      <p class="muted">Deliveries of ${instances.map(({ instance, since }, n) => html`${n ? "; " : ""}<${Text}>${instance.host}</${Text}>, process ${instance.process}, since <${Time} at=${since} plain />`)}. Instances that did not reply to this page are missing.</p>
      <details><summary>By the hour</summary><${Table} hours=${hours} /></details>
    </section>`;
}

function Table({ hours: { start, step, delivered, failed, late: lateness, pending } }) {
  const rows = new Map();
  delivered.forEach((number, n) => {
    if (number === null) return;
    const at = Math.floor((start + n * step) / HOUR) * HOUR;
    const [all, bad, slow] = rows.get(at) ?? [0, 0, 0];
    rows.set(at, [all + number, bad + failed[n], Math.max(slow, lateness[n] ?? 0), pending[n] ?? rows.get(at)?.[3]]);
  });
  return html`
    <table class="values"><thead><tr><th>From</th><th>Delivered</th><th>Failed</th><th>Late, p99</th><th>Pending</th></tr></thead>
      <tbody>${[...rows].reverse().map(([at, [all, bad, slow, held]]) => html`
        <tr key=${at}><td>${local(at)}</td><td>${count(all)}</td><td>${count(bad)}</td><td>${slow ? late(slow) : "–"}</td><td>${held === undefined ? "–" : count(held)}</td></tr>`)}</tbody></table>`;
}
