// Numbers, durations and times as text.

import { now } from "./api.js";
import { html } from "./preact.js";

const groups = new Intl.NumberFormat("en");

/** The exact number in groups of three digits. */
export const count = (number) => groups.format(number ?? 0);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${Number(number) === 1 ? one : many}`;

export function rate(perSecond) {
  if (perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return "< 0.1";
  return perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
}

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** A duration with at most two units: `3 h 20 min`, `4.2 s`, `15 ms`. */
export function duration(seconds) {
  if (seconds < 0.9995) return `${seconds < 0.001 && seconds > 0 ? "< 1" : Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  let whole = Math.round(seconds);
  const at = UNITS.findIndex(([, length]) => whole >= length);
  const parts = UNITS.slice(at, at + 2).map(([unit, length]) => {
    const number = Math.floor(whole / length);
    whole %= length;
    return number ? `${count(number)} ${unit}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

export function bytes(number) {
  if (number < 1024) return plural(number, "byte");
  return number < 1024 * 1024 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / 1024 / 1024).toFixed(1)} MiB`;
}

/** A time in epoch ms; NaN if a Date cannot hold it. The API writes times after the year 9999 in UTC as milliseconds. */
export const instant = (text) => new Date(/^-?\d+$/.test(text) ? Number(text) : text).getTime();

const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const formats = [clock, { ...clock, day: "numeric", month: "short" }, { ...clock, day: "numeric", month: "short", year: "numeric" }]
  .map((options) => new Intl.DateTimeFormat(undefined, options));

/** A time in the viewer's zone, without today's date and without the current year. */
export function local(at) {
  const [date, today] = [new Date(at), new Date(now())];
  const isThisYear = date.getFullYear() === today.getFullYear();
  return formats[date.toDateString() === today.toDateString() ? 0 : isThisYear ? 1 : 2].format(date);
}

export const utc = (at) => `${new Date(at).toISOString().replace("T", " ").replace("Z", "")} UTC`;

function distance(at) {
  const seconds = (at - now()) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const text = duration(Math.max(1, Math.round(Math.abs(seconds))));
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

/** A time of the API in the viewer's zone, with UTC on hover and the distance from now. */
export function Time({ at, plain, far }) {
  if (!at) return html`<span class="muted">–</span>`;
  const millis = instant(at);
  if (Number.isNaN(millis)) return html`<span title="milliseconds since 1970">${count(BigInt(at))} ms</span>`;
  const text = far === "only" ? distance(millis) : local(millis);
  return html`<time dateTime=${new Date(millis).toISOString()} title=${utc(millis)}>${text}</time>${
    !plain && far !== "only" && html` <span class="muted far">${distance(millis)}</span>`}`;
}
