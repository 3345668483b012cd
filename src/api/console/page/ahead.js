// The view of messages by due time: a histogram for each route. Each bar links to the messages of its interval.

import { get, ofRoute, usePoll } from "./api.js";
import { Bars } from "./charts.js";
import { count, instant, local, plural } from "./format.js";
import { Empty, link, Loading, Trouble, usable } from "./parts.js";
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

export function Ahead({ overview, query }) {
  const names = usable(overview).map((route) => route.route);
  const [name, , horizon, buckets] = HORIZONS.find(([known]) => known === query.within) ?? HORIZONS[1];
  const { data, problem } = usePoll(
    (signal) => Promise.all(names.map(async (route) => [route, await get(ofRoute(route, "/forecast"), { horizon, buckets }, signal)])),
    [names, name],
  );
  return html`
    <h1>Ahead</h1>
    <p class="lead">Messages by due time. A bar lists those of its interval.</p>
    <nav class="choice" aria-label="Horizon">${HORIZONS.map(([known, title]) => html`
      <a key=${known} href=${link("ahead", { within: known })} aria-current=${known === name ? "true" : undefined}>${title}</a>`)}</nav>
    <${Trouble} problem=${problem} />
    ${!data && !problem && html`<${Loading} />`}
    ${data && !data.length && html`<${Empty}>No route is configured.</${Empty}>`}
    ${data?.map(([route, forecast]) => html`<${Forecast} key=${route} route=${route} forecast=${forecast} within=${name} />`)}`;
}

function Forecast({ route, forecast, within }) {
  const { bucket_ms: length, counts, overdue, later } = forecast;
  const start = instant(forecast.now);
  const at = (n) => new Date(start + n * length).toISOString();
  const listed = (since, until) => link("messages", { route, state: "pending", since, until });
  const bars = counts.map((number, n) => ({
    count: number,
    href: listed(at(n), at(n + 1)),
    label: `${plural(number, "message")}, ${local(start + n * length)} to ${local(start + (n + 1) * length)}`,
  }));
  const ticks = Array.from({ length: TICKS }, (_, n) => tick(start + (n * counts.length * length) / (TICKS - 1), within));
  const total = counts.reduce((sum, number) => sum + BigInt(number), 0n);
  return html`
    <section class="panel" aria-label="Route ${route}">
      <header class="row">
        <h2><a href=${link("messages", { route })}>${route}</a></h2>
        <span><b>${count(total)}</b> within the ${within}</span>
        ${overdue ? html`<a class="warn" href=${listed(undefined, at(0))}>${count(overdue)} overdue</a>` : html`<span class="muted">none overdue</span>`}
        <a class=${later ? "" : "muted"} href=${listed(at(counts.length))}>${count(later)} later</a>
      </header>
      <${Bars} bars=${bars} ticks=${ticks} label="${route}: messages by due time, within the ${within}. Arrow keys go from bar to bar." />
    </section>`;
}

function tick(at, within) {
  const date = new Date(at);
  if (within === "week") return new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric" }).format(date);
  const second = within === "minute" ? "2-digit" : undefined;
  return new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second, hourCycle: "h23" }).format(date);
}
