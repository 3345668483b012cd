// The timeline of a message: acceptance, due time, failed attempts and ends, in order.

import { duration, instant, plural, Time } from "./format.js";
import { Text } from "./parts.js";
import { html } from "./preact.js";

const ENDS = { delivered: "Delivered", dead: "Became a dead letter", cancelled: "Cancelled", expired: "Expired", replaced: "Replaced" };

const by = (token) => token && html` by <${Text}>${token}</${Text}>`;

const detail = (status, text) => [status && ` with status ${status}`, text && html`: <${Text} tag="span" class="more">${text}</${Text}>`];

/** Events of one acceptance, as time, text and whether it is bad; `end` is set if it ended. */
const events = ({ accepted_at: accepted, due, scheduled_by: token }, end) => [
  [accepted, html`Accepted${by(token)}`], [due, "Due"],
  end && [end.ended_at, html`${ENDS[end.outcome]}${by(end.cancelled_by)}${end.late_ms !== undefined && `, ${duration(end.late_ms / 1000)} late`}${end.attempts > 0 && `, ${plural(end.attempts, "attempt")}`}${detail(end.status, end.error)}`, end.error],
];

const attempt = ({ at, outcome, status, duration_ms: took, instance, error }) =>
  [at, html`Attempt ${outcome} after ${duration(Number(took) / 1000)}${by(instance)}${detail(status, error)}`, true];

export function Timeline({ message }) {
  const { history = [], attempt_log: attempts = [], next_attempt_at: next } = message;
  const all = [...history].reverse().flatMap((end) => events(end, end));
  // The last end of a dead letter is its own.
  if (!message.ended_at && history[0]?.accepted_at !== message.accepted_at) all.push(...events(message));
  all.push(...attempts.map(attempt), next !== message.due && [next, "Next attempt"]);
  const known = all.filter((event) => event?.[0]).sort(([one], [other]) => instant(one) - instant(other));
  return known.length > 0 && html`
    <section class="panel" aria-label="Timeline"><h2>Timeline</h2>
      <table class="values"><tbody>${known.map(([at, text, isBad], n) => html`
        <tr key=${n}><th scope="row"><${Time} at=${at} /></th><td class=${isBad ? "bad" : ""}>${text}</td></tr>`)}</tbody></table>
    </section>`;
}
