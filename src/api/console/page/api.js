// Calls of the API: the token, exact numbers, problem documents, and polling.

import { useEffect, useState } from "./preact.js";

/** The base URL of the API, below any prefix that a proxy adds. */
const BASE = new URL("../v1/", document.baseURI);
const TOKEN = "punctual-token";

/** Pause between two calls of a poll, in ms. */
const PAUSE = 2000;
/** After a slow poll, the pause is this many times its duration: polls take at most a tenth of the time. */
const REST = 9;
/** Maximum duration of a call, in ms: `server.request_timeout` is at most a minute, and a reply can take another. */
const LONGEST = 125_000;

export const events = new EventTarget();
const announce = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));
/** Called when shown data is out of date: polls continue at once. */
export const changed = () => announce("changed");

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** The server's clock minus the viewer's, in ms. */
let skew = 0;
export const now = () => Date.now() + skew;

/** An error of a call. `status` is 0 when there was no reply. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    Object.assign(this, { status, title, detail });
  }
}

/** Integers that a double cannot hold are BigInt. */
function exact(_, value, context) {
  const isLarge = typeof value === "number" && !Number.isSafeInteger(value);
  return isLarge && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

/** The slow way only with digits that a double may not hold. */
export const parse = (text) => (/\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text));

/** `query`: values that are null, undefined or empty are left out. The result is null for an empty reply. */
export async function call(method, path, { query = {}, body, signal } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  const secret = token.get();
  const end = AbortSignal.timeout(LONGEST);
  let response, text;
  try {
    response = await fetch(url, {
      method,
      headers: secret ? { authorization: `Bearer ${secret}` } : {},
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, end]) : end,
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "no reply", "punctual does not reply, or the connection broke off");
  }
  const date = Date.parse(response.headers.get("date"));
  if (date) skew = Math.abs(date - Date.now()) < 2000 ? 0 : date - Date.now();
  if (response.ok) return text ? parse(text) : null;
  let problem = {};
  try {
    problem = parse(text);
  } catch {
    // The reply is a page of a proxy.
  }
  if (secret === token.get()) {
    if (response.status === 401) announce("unauthorized", { why: secret ? "The token is not valid, or not any more." : "" });
    // Without the right to read no view has anything.
    if (response.status === 403 && path === "overview" && secret) announce("unauthorized", { why: `Refused: ${problem.detail ?? "HTTP 403"}.` });
  }
  throw new Problem(response.status, problem.title ?? `HTTP ${response.status}`, problem.detail ?? "no detail was given");
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body) => call("POST", path, { body });

const part = encodeURIComponent;
export const ofRoute = (route, rest = "") => `routes/${part(route)}${rest}`;
export const ofFlow = (route, key, rest = "") => ofRoute(route, `/flows/${part(key || "@")}${rest}`);
export const ofGroup = (route, group) => ofRoute(route, `/groups/${part(group)}`);
export const flowName = (key) => key || "without a key";
export const ofSchedule = (name, rest = "") => `schedules/${part(name)}${rest}`;
export const ofMessage = (route, id, rest = "") => ofRoute(route, `/messages/${part(id)}${rest}`);

/**
 * Calls `load(signal)` repeatedly while the page is visible, and at once after a change. When one of `keys` changes,
 * the loaded data is dropped. `least()`: the pause, in ms. `problem` is that of the latest call; `data` stays.
 */
export function usePoll(load, keys, least = () => PAUSE) {
  const key = JSON.stringify(keys);
  const [state, setState] = useState({});
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    let timer, isLoading = false, isWanted = false;
    const round = async () => {
      clearTimeout(timer);
      if (isLoading) {
        isWanted = true;
        return;
      }
      if (document.hidden) return;
      isLoading = true;
      const begun = performance.now();
      try {
        const data = await load(signal);
        if (!signal.aborted) setState({ key, data, at: Date.now() });
      } catch (problem) {
        if (!signal.aborted) setState((last) => ({ ...(last.key === key ? last : {}), key, problem }));
        if (!(problem instanceof Problem) && !signal.aborted) console.error(problem);
      }
      isLoading = false;
      if (signal.aborted) return;
      const pause = isWanted ? 0 : Math.max(least(), REST * (performance.now() - begun));
      isWanted = false;
      timer = setTimeout(round, pause);
    };
    document.addEventListener("visibilitychange", round, { signal });
    events.addEventListener("changed", round, { signal });
    round();
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
  return state.key === key ? state : {};
}
