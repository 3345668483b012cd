// The timeline of a message: acceptance, due time, failed attempts and ends, in order.

import { count, duration, instant, plural, Time } from "./format.js";
import { Text } from "./parts.js";
import { html } from "./preact.js";

const ENDS = { delivered: "Delivered", dead: "Became a dead letter", cancelled: "Cancelled", expired: "Expired: became a dead letter", replaced: "Replaced by a newer message" };

const by = (token) => token && html` by <${Text}>${token}</${Text}>`;

const detail = (text) => text && html`: <${Text} tag="span" class="more">${text}</${Text}>`;

/** The events of one acceptance; `end` is set if it ended. */
function events({ accepted_at: accepted, due, scheduled_by: token }, end) {
  const found = [[accepted, html`Accepted${by(token)}`], [due, "Due"]];
  if (end) {
    const late = end.late_ms !== undefined && html`, ${duration(end.late_ms / 1000)} after its due time`;
    const status = end.status !== undefined && html`, status ${end.status}`;
    const tries = end.attempts > 0 && html`, ${plural(end.attempts, "attempt")}`;
    found.push([end.ended_at, html`${ENDS[end.outcome]}${by(end.cancelled_by)}${late}${status}${tries}${detail(end.error)}`, end.outcome === "dead" || end.outcome === "expired"]);
  }
  return found;
}

const attempt = ({ at, outcome, status, duration_ms: took, instance, error }) => [
  at, html`Attempt ${outcome}${status !== undefined && html`, status ${status}`}, after ${duration(Number(took) / 1000)}, by <${Text}>${instance}</${Text}>${detail(error)}`, true,
];

export function Timeline({ message }) {
  const { history = [], attempt_log: attempts = [], next_attempt_at: next } = message;
  const all = [...history].reverse().flatMap((end) => events(end, end));
  // The last entry of a dead letter is its own.
  if (!message.ended_at && history[0]?.accepted_at !== message.accepted_at) all.push(...events(message));
  all.push(...attempts.map(attempt));
  if (next && next !== message.due) all.push([next, "Next attempt"]);
  const known = all.filter(([at]) => at).map((event, n) => ({ event, n, at: instant(event[0]) }));
  known.sort((one, other) => one.at - other.at || one.n - other.n);
  return known.length > 0 && html`
    <section class="panel" aria-label="Timeline"><h2>Timeline <span class="muted">${count(known.length)}</span></h2>
      <table class="values timeline"><tbody>${known.map(({ event: [at, text, isBad] }, n) => html`
        <tr key=${n}><th scope="row"><${Time} at=${at} /></th><td class=${isBad ? "bad" : ""}>${text}</td></tr>`)}</tbody></table>
    </section>`;
}
