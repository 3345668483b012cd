// The view of messages by due time: a histogram of all routes, and one of each route that has any. Each bar links to the
// messages of its interval.

import { get, usePoll } from "./api.js";
import { Bars } from "./charts.js";
import { count, instant, local, plural } from "./format.js";
import { Empty, link, Loading, Text, Trouble } from "./parts.js";
import { html } from "./preact.js";

/** Name, title, horizon and intervals of a forecast. */
const HORIZONS = [
  ["minute", "Minute", "1m", 60],
  ["hour", "Hour", "1h", 60],
  ["day", "Day", "1d", 48],
  ["week", "Week", "7d", 56],
];
/** Times below a chart. */
const TICKS = 5;
/** Maximum number of routes with a chart of their own: above it each has a line. */
const CHARTS = 12;

export function Ahead({ query }) {
  const [name, , horizon, buckets] = HORIZONS.find(([known]) => known === query.within) ?? HORIZONS[1];
  const { data, problem } = usePoll((signal) => get("forecast", { horizon, buckets }, signal), [name]);
  const { route, since, until } = query;
  const of = (one) => ({ ...data, ...one });
  // The soonest first.
  const first = ({ overdue, counts }) => (overdue ? -1 : counts.findIndex(Boolean) >>> 0);
  const all = Object.entries(data?.routes ?? {}).sort(([, a], [, b]) => first(a) - first(b));
  const within = since && until ? all.filter(([, one]) => some(data, one, since, until)) : all;
  return html`
    <h1>Ahead</h1>
    <p class="lead">Messages by due time. A bar lists those of its interval.</p>
    <nav class="choice" aria-label="Horizon">${HORIZONS.map(([known, title]) => html`
      <a key=${known} href=${link("ahead", { within: known, route })} aria-current=${known === name ? "true" : undefined}>${title}</a>`)}</nav>
    <${Trouble} problem=${problem} />
    ${!data && !problem && html`<${Loading} />`}
    ${data?.failed.map((one) => html`<p class="trouble">Route ${one.route} could not be asked: <${Text}>${one.error}</${Text}></p>`)}
    ${data && (route
      ? html`<p class="filters">Route ${route} <a href=${link("ahead", { within: name })}>Show all</a></p>
        <${Forecast} route=${route} forecast=${of(data.routes[route] ?? { overdue: 0, later: 0, counts: Array(buckets).fill(0) })} within=${name} />`
      : html`<${Forecast} forecast=${data} within=${name} />
        ${since && until && html`<p class="filters">Routes with messages due from ${local(instant(since))} to ${local(instant(until))}: choose one for its list. <a href=${link("ahead", { within: name })}>Show all</a></p>`}
        ${!within.length && html`<${Empty}>No message is pending${since ? " there" : ""}.</${Empty}>`}
        ${since || within.length > CHARTS
          ? within.length > 0 && html`<ul class="lamps ahead" aria-label="Routes">${within.map(([own, one]) => html`<${Line} key=${own} route=${own} forecast=${of(one)} within=${name} since=${since} until=${until} />`)}</ul>`
          : within.map(([own, one]) => html`<${Forecast} key=${own} route=${own} forecast=${of(one)} within=${name} />`)}`)}`;
}

const time = (at) => new Date(at).toISOString();
const start = ({ now }) => instant(now);

/** Whether a route has a message in an interval of now that overlaps that time. */
function some({ now, bucket_ms: length }, { counts }, since, until) {
  const [from, to] = [since, until].map((at) => (instant(at) - instant(now)) / length);
  return counts.some((number, n) => number && n + 1 > from && n < to);
}

/** The messages of a route, or the routes without one. */
const listed = (route, within, since, until) =>
  (route ? link("messages", { route, state: "pending", since, until }) : link("ahead", { within, since, until }));

/** `route`: none for the sum of all routes. */
function Forecast({ route, forecast, within }) {
  const { bucket_ms: length, counts, overdue, later, routes } = forecast;
  const at = (n) => start(forecast) + n * length;
  const only = (n) => {
    const own = Object.keys(routes).filter((name) => routes[name].counts[n]);
    return own.length === 1 ? own[0] : undefined;
  };
  const bars = counts.map((number, n) => ({
    count: number,
    href: listed(route ?? only(n), within, time(at(n)), time(at(n + 1))),
    label: `${plural(number, "message")}, ${local(at(n))} to ${local(at(n + 1))}`,
  }));
  const ticks = Array.from({ length: TICKS }, (_, n) => tick(at((n * counts.length) / (TICKS - 1)), within));
  const name = route ?? "All routes";
  const number = (text, href, kind) => (route ? html`<a class=${kind} href=${href}>${text}</a>` : html`<span class=${kind}>${text}</span>`);
  return html`
    <section class="panel" aria-label=${route ? `Route ${route}` : name}>
      <header class="row">
        <h2>${route ? html`<a href=${link("messages", { route })}>${route}</a>` : name}</h2>
        <span><b>${count(total(counts))}</b> within the ${within}</span>
        ${overdue ? number(`${count(overdue)} overdue`, listed(route, within, undefined, time(at(0))), "warn") : html`<span class="muted">none overdue</span>`}
        ${number(`${count(later)} later`, listed(route, within, time(at(counts.length))), later ? "" : "muted")}
      </header>
      <${Bars} bars=${bars} ticks=${ticks} label="${name}: messages by due time, within the ${within}. Arrow keys go from bar to bar." />
    </section>`;
}

const total = (counts) => counts.reduce((sum, number) => sum + BigInt(number), 0n);

/** A route in one line. */
function Line({ route, forecast, within, since, until }) {
  const { counts, overdue, later } = forecast;
  const top = Math.max(1, ...counts.map(Number));
  const bars = counts.map((number, n) => (number ? `M${n} 20v-${((Number(number) / top) * 19).toFixed(1)}h.8v20z` : "")).join("");
  return html`
    <li><a href=${since ? listed(route, within, since, until) : link("ahead", { within, route })}>${route}</a>
      <svg class="curve" viewBox="0 0 ${counts.length} 20" preserveAspectRatio="none" aria-hidden="true"><path class="bar" d=${bars} /></svg>
      <span><b>${count(total(counts))}</b> <span class="unit">within the ${within}</span></span>
      <span class=${overdue ? "warn" : "muted"}>${overdue ? `${count(overdue)} overdue` : "none overdue"}</span>
      <span class="muted">${count(later)} later</span></li>`;
}

function tick(at, within) {
  const date = new Date(at);
  if (within === "week") return new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric" }).format(date);
  const second = within === "minute" ? "2-digit" : undefined;
  return new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second, hourCycle: "h23" }).format(date);
}
