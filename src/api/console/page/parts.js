// Small parts that all views use.

import { count } from "./format.js";
import { html } from "./preact.js";

/** The address of a view. Values that are null or empty are left out. */
export function link(path, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#/${path}${known.length ? `?${new URLSearchParams(known)}` : ""}`;
}

/** The message of a schedule leads to that. */
export const messagePath = (route, id) =>
  id.endsWith("@") ? `schedules?name=${encodeURIComponent(id.slice(0, -1))}` : `messages/${encodeURIComponent(route)}/${encodeURIComponent(id)}`;

/** `state`: good, warn, bad or idle. The text says the same as the colour. */
export const Lamp = ({ state, children }) => html`<span class="lamp ${state}"><i aria-hidden="true"></i>${children}</span>`;

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

/** External text, isolated from the text direction of the page. */
export const Text = ({ children, tag = "bdi", ...rest }) => html`<${tag} dir="auto" ...${rest}>${children}</${tag}>`;

export function Trouble({ problem }) {
  if (!problem) return null;
  const status = problem.status ? `${problem.status} ${problem.title}` : problem.title ?? "error";
  return html`<p class="trouble" role="alert"><b>${status}</b> <${Text}>${problem.detail ?? String(problem)}</${Text}></p>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Loading = () => html`<p class="empty" role="status">Loading…</p>`;

export const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** The state of a sink: down, recovering, in part down, or up. */
export function sinkLamp(sink) {
  if (sink.breaker === "open") return ["bad", "down"];
  if (sink.breaker === "half_open") return ["warn", "recovering"];
  if (sink.down_domains.length) return ["warn", `${count(sink.down_domains.length)} domains down`.replace(/^1 domains/, "1 domain")];
  if (sink.check && sink.check !== "ok") return ["bad", "check fails"];
  return sink.check ? ["good", "up"] : ["idle", "not checked yet"];
}

/** The error behind the lamp of a sink: of its check if that fails, otherwise of its messages. */
export const sinkError = (sink) => (sinkLamp(sink)[1] === "check fails" ? sink.check : sink.last_error);

export function sourceLamp(source) {
  return { running: ["good", "running"], failing: ["bad", "failing"] }[source.state] ?? ["idle", source.state];
}

/** The routes that calls can name: configured and readable. */
export const usable = (overview) => (overview.routes ?? []).filter((route) => !route.error && route.sink !== null);

export function RoutePicker({ routes, value, onPick }) {
  return html`<label class="field">Route
    <select value=${value ?? ""} onChange=${(event) => onPick(event.target.value)}>
      ${routes.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label>`;
}
