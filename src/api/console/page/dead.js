// The view of dead letters: grouped by reason and error, and what to do with them.

import { purge, redrive, rights, untilLoaded } from "./actions.js";
import { get, now, ofRoute, usePoll } from "./api.js";
import { count, instant, plural, Time } from "./format.js";
import { Filter, PAGE, Pages, Table } from "./messages.js";
import { Empty, link, Loading, RoutePicker, Text, Trouble, usable } from "./parts.js";
import { html, useEffect, useMemo, useState } from "./preact.js";

/** Number of the newest, and of the oldest, dead letters that are grouped by error. */
const GROUPED = 1000;
/** Interval of that grouping, in ms. */
const GROUPED_EVERY = 10_000;

const go = (query) => {
  location.hash = link("dead", query);
};

export function Dead({ overview, query }) {
  const names = usable(overview).map((route) => route.route);
  const route = query.route ?? names.find((name) => overview.routes.find((one) => one.route === name).dead) ?? names[0];
  const [isSettled, setSettled] = useState(true);
  if (!route) return html`<h1>Dead letters</h1><${Empty}>No route is configured, or Redis does not reply.</${Empty}>`;
  return html`
    <h1>Dead letters</h1>
    <div class="controls">
      <${RoutePicker} routes=${names} value=${route} onPick=${(name) => go({ route: name })} />
      <${Filter} key=${route} value=${query.contains} onFilter=${(text) => location.replace(link("dead", { route, reason: query.reason, contains: text }))} onTyped=${setSettled} />
    </div>
    <${Letters} key=${route} overview=${overview} query=${query} route=${route} isSettled=${isSettled} />`;
}

function Letters({ overview, query, route, isSettled }) {
  const { reason, contains, cursor } = query;
  const [selected, setSelected] = useState(new Set());
  useEffect(() => setSelected(new Set()), [reason, contains, cursor]);
  const summary = usePoll((signal) => get(ofRoute(route, "/dead/summary"), {}, signal), [route]);
  const list = usePoll(
    (signal) => get(ofRoute(route, "/messages"), { state: "dead", reason, contains, cursor, limit: PAGE, payload: false }, signal),
    [route, reason, contains, cursor],
  );
  const can = rights(overview).admin;
  const filter = { ...(reason && { reason }), ...(contains && { contains }) };
  const isFiltered = Boolean(reason || contains);
  const messages = list.data?.messages ?? [];
  const clear = () => setSelected(new Set());
  const ids = [...selected];
  const chosen = ids.length ? { ids, until: untilLoaded(messages) } : isFiltered ? filter : { all: true };
  const what = ids.length ? `${ids.length} selected` : isFiltered ? "all that match" : "all dead letters";
  const selection = ids.length ? plural(ids.length, "selected dead letter")
    : [reason && `reason ${reason}`, contains && `error contains “${contains}”`].filter(Boolean).join(", ") || "no filter: all dead letters of the route";
  return html`
    <${Trouble} problem=${summary.problem ?? list.problem} />
    <${Groups} summary=${summary.data} route=${route} reason=${reason} contains=${contains} />
    ${isFiltered && html`<p class="filters">Shown: ${reason && html`reason <b>${reason}</b>`} ${contains && html`error contains <${Text} tag="b">${contains}</${Text}>`} <a href=${link("dead", { route })}>Show all</a></p>`}
    ${can && messages.length > 0 && html`
      <div class="bar" role="group" aria-label="Actions">
        <span>${ids.length ? `${count(ids.length)} selected` : what.replace(/^a/, "A")}</span>
        <button disabled=${!isSettled} onClick=${() => redrive(route, chosen, what, clear, selection)}>Redrive ${what}</button>
        <button class="danger" disabled=${!isSettled} onClick=${() => purge(route, chosen, what, clear, selection)}>Purge ${what}</button>
      </div>`}
    ${!list.data && !list.problem && html`<${Loading} />`}
    ${list.data && !messages.length && html`<${Empty}>${list.data.cursor ? "None matches on this page; later pages may have some." : isFiltered ? "No dead letter matches." : `Route ${route} has no dead letters.`}</${Empty}>`}
    ${messages.length > 0 && html`<${Table} messages=${messages} state="dead" selected=${selected} onSelect=${can ? setSelected : null} />`}
    <${Pages} cursor=${cursor} next=${list.data?.cursor} to=${(value) => link("dead", { route, reason, contains, cursor: value })} />`;
}

/** The start of an error, up to its second colon or a long number: `rejected: HTTP 422`. The rest varies by message. */
const kind = (error) => error.split(": ", 2).join(": ").split(/\n|\d{5}/)[0].trimEnd().slice(0, 120);

function Groups({ summary, route, reason, contains }) {
  if (!summary?.reasons.length) return null;
  return html`
    <section aria-label="Reasons">
      <ul class="groups">${summary.reasons.map((group) => html`
        <li key=${group.reason} class=${group.reason === reason ? "chosen" : ""}>
          <a href=${link("dead", { route, reason: group.reason === reason ? undefined : group.reason })} aria-current=${group.reason === reason ? "true" : undefined}>
            <b>${count(group.count)}</b> <span>${group.reason}</span></a>
          <span class="muted">latest <${Time} at=${group.newest} far="only" />, oldest <${Time} at=${group.oldest} far="only" /></span>
          <${Text} tag="p" class="more">${group.sample.error}</${Text}>
        </li>`)}</ul>
      ${!summary.complete && html`<p class="muted">Not all were counted in the time of a call.</p>`}
      <${Errors} route=${route} reason=${reason} contains=${contains} total=${summary.total} />
    </section>`;
}

/** The kinds of errors of the newest and of the oldest dead letters. Those of today come first. */
function Errors({ route, reason, contains, total }) {
  const { data } = usePoll(
    async (signal) => {
      const list = (order) => get(ofRoute(route, "/messages"), { state: "dead", reason, order, limit: GROUPED, payload: false }, signal);
      const newest = await list("desc");
      const oldest = newest.cursor ? (await list("asc")).messages : [];
      // Below twice the number both lists have some.
      return { letters: [...new Map([...newest.messages, ...oldest].map((one) => [one.id, one])).values()], isPart: oldest.length === GROUPED };
    },
    [route, reason],
    () => GROUPED_EVERY,
  );
  const kinds = useMemo(() => {
    const kinds = new Map();
    for (const { last_error: error, died_at: at } of data?.letters ?? []) {
      if (!error) continue;
      const known = kinds.get(kind(error)) ?? { number: 0, latest: 0 };
      kinds.set(kind(error), { number: known.number + 1, latest: Math.max(known.latest, instant(at)) });
    }
    const today = new Date(now()).setHours(0, 0, 0, 0);
    const isOld = ({ latest }) => Number(latest < today);
    return [...kinds].sort(([, a], [, b]) => isOld(a) - isOld(b) || b.number - a.number).slice(0, 12);
  }, [data]);
  if (kinds.length < 2 && !contains) return null;
  return html`
    <h2>Errors ${data?.isPart && total > data.letters.length && html`<small class="muted">of the newest and the oldest ${count(GROUPED)} of ${plural(total, "dead letter")}</small>`}</h2>
    <ul class="kinds">${kinds.map(([text, { number, latest }]) => html`
      <li key=${text}><a href=${link("dead", { route, reason, contains: text === contains ? undefined : text })} aria-current=${text === contains ? "true" : undefined}>
        <b>${count(number)}</b> <${Text}>${text}</${Text}> <span class="muted">latest <${Time} at=${new Date(latest).toISOString()} far="only" /></span></a></li>`)}</ul>`;
}
