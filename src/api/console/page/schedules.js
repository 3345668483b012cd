// The view of recurring schedules: when they fire, and how their occurrences ended.

import { pauseSchedule, resumeSchedule, rights, runSchedule } from "./actions.js";
import { get, ofSchedule, usePoll } from "./api.js";
import { count, duration, plural, Time } from "./format.js";
import { Badge, Empty, Fact, link, Loading, Text, Trouble } from "./parts.js";
import { html, useState } from "./preact.js";

/** Maximum number of schedules that are listed. */
const MOST = 200;

const RESULTS = { delivered: "good", dead: "bad", missed: "warn" };
const MISSED = { skip: "not sent", last: "the last one is sent" };

export function Schedules({ overview, query: { name } }) {
  const [part, setPart] = useState("");
  const { data, problem } = usePoll((signal) => get("schedules", {}, signal), []);
  const all = data?.schedules;
  const found = all?.filter((one) => one.name.includes(part)) ?? [];
  return html`
    <h1>Schedules</h1>
    ${name && html`<${One} key=${name} name=${name} can=${rights(overview).admin} />`}
    <${Trouble} problem=${problem} />
    ${!all && !problem && html`<${Loading} />`}
    ${all?.length === 0 && html`<${Empty}>There is no schedule.</${Empty}>`}
    ${all?.length > 0 && html`
      <div class="controls"><label class="field">Name contains
        <input value=${part} onInput=${(event) => setPart(event.target.value)} autocomplete="off" spellcheck="false" /></label></div>
      <ul class="lamps" aria-label="Schedules">${found.slice(0, MOST).map((one) => html`<${Line} key=${one.name} one=${one} />`)}</ul>
      ${!found.length && html`<${Empty}>No name contains this.</${Empty}>`}
      ${found.length > MOST && html`<p class="muted">and ${count(found.length - MOST)} more</p>`}`}`;
}

const state = (one) => (one.paused ? ["warn", "paused"] : one.in_flight ? ["", "in flight"] : one.next ? null : ["", "ended"]);

function State({ one }) {
  const [kind, text] = state(one) ?? [];
  return text && html`<${Badge} kind=${kind}>${text}</${Badge}>`;
}

/** The rule in words, and its zone. */
const Rule = ({ one }) => html`<${Text} tag="span">${one.words}</${Text}>${one.cron && html`, <span class="muted">${one.time_zone}</span>`}`;

function Line({ one }) {
  const { name, route, next, last } = one;
  return html`
    <li>
      <b><a href=${link("schedules", { name })}>${name}</a></b> <${State} one=${one} /> <${Rule} one=${one} />
      <p class="more">On route <a href=${link("messages", { route })}>${route}</a>. ${next && html`Next: <${Time} at=${next} />. `}${
        last && html`Last: ${last.result}${last.count ? ` ${count(last.count)}` : ""} <${Time} at=${last.occurrence ?? last.at} far="only" />.`}</p>
    </li>`;
}

function One({ name, can }) {
  const { data: one, problem } = usePoll((signal) => get(ofSchedule(name), {}, signal), [name]);
  if (!one) return html`<${Trouble} problem=${problem} />${!problem && html`<${Loading} />`}`;
  const button = (text, act) => html`<button class="small" onClick=${() => act(name)}>${text}</button> `;
  const times = (list) => html`<ol aria-label="Next occurrences">${list.map((at) => html`<li key=${at}><${Time} at=${at} /></li>`)}</ol>`;
  return html`
    <article class="tile" aria-label="Schedule ${name}">
      <header><h2>${name}</h2><${State} one=${one} /></header>
      <${Trouble} problem=${problem} />
      ${can && html`<p>${button("Run now", runSchedule)}${one.paused ? button("Resume", resumeSchedule) : button("Pause", pauseSchedule)}</p>`}
      <dl class="lines">
        <${Fact} name="Route"><a href=${link("messages", { route: one.route })}>${one.route}</a></${Fact}>
        <${Fact} name="Fires"><${Rule} one=${one} /></${Fact}>
        ${one.cron && html`<${Fact} name="Cron"><code>${one.cron}</code></${Fact}>`}
        <${Fact} name="Missed occurrences">${MISSED[one.missed] ?? `the last ${count(one.missed.all)} are sent`}</${Fact}>
        ${one.ends_at && html`<${Fact} name="Ends"><${Time} at=${one.ends_at} /></${Fact}>`}
        <${Fact} name="Set by">${one.managed_by === "file" ? "the configuration file" : "the API"}</${Fact}>
        <${Fact} name="Next occurrences">${one.following.length ? times(one.following) : "none"}</${Fact}>
      </dl>
      <h3>Last runs</h3>
      ${one.runs.length ? html`
        <table class="values" aria-label="Last runs"><thead><tr><th>Occurrence</th><th>Result</th><th>Lateness</th></tr></thead>
          <tbody>${one.runs.map((run, n) => html`<${Run} key=${n} run=${run} />`)}</tbody></table>` : html`<p class="muted">None yet.</p>`}
    </article>`;
}

function Run({ run: { result, occurrence, at, late_ms: late, count: number } }) {
  return html`
    <tr><td><${Time} at=${occurrence ?? at} /></td>
      <td><${Badge} kind=${RESULTS[result]}>${number ? plural(number, "missed", "missed") : result}</${Badge}></td>
      <td>${late === undefined ? "–" : duration(Number(late) / 1000)}</td></tr>`;
}
