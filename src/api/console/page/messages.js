// The view of a route's messages: a table by state, page by page.

import { get, ofGroup, ofRoute, usePoll } from "./api.js";
import { count, instant, local, Time } from "./format.js";
import { Badge, Empty, link, Loading, messagePath, RoutePicker, Text, Trouble, usable } from "./parts.js";
import { html, useEffect, useRef, useState } from "./preact.js";

/** Messages of a page. */
export const PAGE = 100;

const STATES = [["pending", "Pending"], ["retrying", "Retrying"], ["unack", "In flight"], ["dead", "Dead"], ["ended", "Ended"]];

const go = (query) => {
  location.hash = link("messages", query);
};

/** Time after the latest key until a filter applies, in ms. */
const TYPED = 300;

export function Messages({ overview, query }) {
  const names = usable(overview).map((route) => route.route);
  const route = query.route ?? names[0];
  const state = query.state ?? "pending";
  const of = { route, state };
  const { since, until, contains, key, outcome, group, cursor } = query;
  const page = { cursor, limit: PAGE, payload: false };
  // A group has messages in every state.
  const { data, problem } = usePoll(
    (signal) => (!route ? null
      : group ? get(ofGroup(route, group), page, signal)
      : get(ofRoute(route, "/messages"), { state, since, until, contains, key, outcome, ...page }, signal)),
    [route, state, since, until, contains, key, outcome, group, cursor],
  );
  const stats = overview.routes?.find((one) => one.route === route);
  const isFiltered = since || until || contains || key || outcome || group;
  const bounds = { since, until };
  const others = { ...bounds, contains, key, outcome };
  if (!route) return html`<h1>Messages</h1><${Empty}>No route is configured, or Redis does not reply.</${Empty}>`;
  return html`
    <h1>Messages</h1>
    <div class="controls">
      <${RoutePicker} routes=${names} value=${route} onPick=${(name) => go({ route: name, state })} />
      <${States} route=${route} stats=${stats} state=${group ? "group" : state} />
      <${Field} name="group" label="Open a group" value=${group} most="128" onEnter=${(name) => go(name ? { route, group: name } : of)} />
      <${Field} name="id" label="Open an id" most="128" onEnter=${(id) => id && (location.hash = `#/${messagePath(route, id)}`)} />
      ${!group && html`<${Field} name="key" label="Key" value=${key} most="1024" onEnter=${(text) => go({ ...of, ...others, key: text || undefined })} />`}
      ${state === "ended" && html`<${Outcomes} value=${outcome} onPick=${(one) => go({ ...of, ...others, outcome: one || undefined })} />`}
      <${Filter} key=${JSON.stringify(of)} value=${contains} onFilter=${(text) => location.replace(link("messages", { ...of, ...others, contains: text }))} />
    </div>
    ${stats?.paused && html`<p class="pause"><${Badge} kind="warn">paused</${Badge}>${stats.note && html` <${Text}>${stats.note}</${Text}>`}</p>`}
    ${(since || until) && html`
      <p class="filters">${state === "ended" ? "Ended" : "Due"} ${since && `from ${local(instant(since))}`} ${until && `before ${local(instant(until))}`} <a href=${link("messages", of)}>Show all</a></p>`}
    ${group && html`<p class="filters">Group <${Text}>${group}</${Text}>: pending, in flight and dead. <a href=${link("messages", of)}>Show all</a></p>`}
    <${Trouble} problem=${problem} />
    ${!data && !problem && html`<${Loading} />`}
    ${data && !data.messages.length && html`
      <${Empty}>${data.cursor ? "None matches on this page; later pages may have some." : isFiltered ? "No message matches." : "There is none."}</${Empty}>`}
    ${data?.messages.length > 0 && html`<${Table} messages=${data.messages} state=${state} />`}
    <${Pages} cursor=${cursor} next=${data?.cursor} to=${(value) => link("messages", { ...query, ...of, cursor: value })} />`;
}

/** Links to the messages of a route by state, and to its flows if it has any. */
export function States({ route, stats, state }) {
  const numbers = stats && !stats.error ? { ...stats, flows: stats.waiting_flows } : {};
  return html`
    <nav class="choice" aria-label="State">${[...STATES, ["flows", "Flows"]].map(([name, title]) => (name !== "flows" || numbers.flows !== undefined) && (name !== "ended" || numbers.history) && html`
      <a key=${name} href=${name === "dead" ? link("dead", { route }) : link("messages", { route, state: name })} aria-current=${name === state ? "true" : undefined}>
        ${title} <span class="muted">${numbers[name] === undefined ? "" : count(numbers[name])}</span></a>`)}</nav>`;
}

const OUTCOMES = ["delivered", "dead", "cancelled", "expired", "replaced"];

function Outcomes({ value = "", onPick }) {
  return html`<div class="field"><label for="outcome">Outcome</label>
    <select id="outcome" value=${value} onChange=${(event) => onPick(event.target.value)}>
      <option value="">any</option>${OUTCOMES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></div>`;
}

/** A field with a label, which applies with Enter. */
export function Field({ name, label, value = "", most, onEnter }) {
  const enter = (event) => {
    event.preventDefault();
    onEnter(new FormData(event.target).get(name).trim());
  };
  return html`<form class="field" onSubmit=${enter}><label for=${name}>${label}</label>
    <input id=${name} name=${name} defaultValue=${value} key=${value} maxlength=${most} autocomplete="off" spellcheck="false" /></form>`;
}

/**
 * A filter by a part of the last error. It applies after a pause in typing, or at once with Enter.
 * `onTyped(isSettled)`: whether the box holds `value`, the current filter.
 */
export function Filter({ value = "", onFilter, onTyped = () => {} }) {
  const [text, setText] = useState(value);
  const asked = useRef(value);
  const apply = () => {
    if (text.trim() === value) return;
    asked.current = text.trim();
    onFilter(asked.current);
  };
  // The address was changed by a link or by the browser's history.
  useEffect(() => {
    if (value !== asked.current) setText(value);
    asked.current = value;
  }, [value]);
  useEffect(() => {
    onTyped(text.trim() === value);
    const timer = setTimeout(apply, TYPED);
    return () => clearTimeout(timer);
  }, [text, value]);
  const enter = (event) => {
    event.preventDefault();
    apply();
  };
  // At once, not after the next frame, so that no button is enabled in between.
  const type = (event) => {
    setText(event.target.value);
    onTyped(event.target.value.trim() === value);
  };
  return html`<form class="field" onSubmit=${enter}><label for="contains">Error contains</label>
    <input id="contains" name="contains" value=${text} onInput=${type} maxlength="512" autocomplete="off" spellcheck="false" /></form>`;
}

/** `selected`: ids; with `onSelect` each row has a box. */
export function Table({ messages, state, selected, onSelect }) {
  const [isDead, isEnded] = [state === "dead", state === "ended"];
  const ids = messages.map((message) => message.id);
  const all = selected && ids.every((id) => selected.has(id));
  const toggle = (some, isOn) => {
    const next = new Set(selected);
    for (const id of some) isOn ? next.add(id) : next.delete(id);
    onSelect(next);
  };
  return html`
    <table class="list">
      <thead><tr>
        ${onSelect && html`<th class="box"><input type="checkbox" aria-label="Select all on this page" checked=${all} onChange=${() => toggle(ids, !all)} /></th>`}
        <th>Id</th><th>${isEnded ? "Ended" : isDead ? "Died" : state === "unack" ? "Lease ends" : "Due"}</th><th class="n">Attempts</th><th>${isEnded ? "Outcome" : "Last error"}</th>
      </tr></thead>
      <tbody>${messages.map((message, n) => html`
        <tr key=${isEnded ? n : message.id} class=${selected?.has(message.id) ? "chosen" : ""}>
          ${onSelect && html`<td class="box"><input type="checkbox" aria-label="Select ${message.id}" checked=${selected.has(message.id)} onChange=${(event) => toggle([message.id], event.target.checked)} /></td>`}
          <td class="id"><a href="#/${messagePath(message.route, message.id)}">${message.id}</a></td>
          <td class="when"><${Time} at=${isEnded ? message.ended_at : isDead ? message.died_at ?? message.deliver_at : message.deliver_at} /></td>
          <td class="n"><span class="label">attempts </span>${count(message.attempts)}</td>
          <td class="why">${isEnded ? html`${message.outcome} <${Text} class="muted">${message.error ?? (message.status === undefined ? "" : `status ${message.status}`)}</${Text}>` : message.last_error ? html`<${Text} title=${message.last_error}>${message.last_error}</${Text}>` : html`<span class="muted">–</span>`}</td>
        </tr>`)}</tbody>
    </table>`;
}

/** `to(cursor)`: the address of a page. The browser's history has the previous pages. */
export function Pages({ cursor, next, to }) {
  const [passed, setPassed] = useState([]);
  if (!cursor && !next) return null;
  const before = passed.at(-1);
  return html`
    <nav class="pages" aria-label="Pages">
      ${cursor && html`<a class="button" href=${to(undefined)} onClick=${() => setPassed([])}>First page</a>`}
      ${before !== undefined && html`<a class="button" href=${to(before)} onClick=${() => setPassed(passed.slice(0, -1))}>Previous page</a>`}
      ${next && html`<a class="button" rel="next" href=${to(next)} onClick=${() => setPassed([...passed, cursor ?? ""])}>Next page</a>`}
    </nav>`;
}
