// The frame: sign-in, navigation, banners, and the view that the address names.

import { events, get, now, token, usePoll } from "./api.js";
import { Ahead } from "./ahead.js";
import { Dead } from "./dead.js";
import { Dialogs } from "./dialog.js";
import { Find } from "./find.js";
import { Flows } from "./flows.js";
import { duration, Time } from "./format.js";
import { remember, seen } from "./history.js";
import { Message } from "./message.js";
import { Field, Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Lamp, link, Loading, Text, Trouble } from "./parts.js";
import { html, render, useEffect, useRef, useState } from "./preact.js";
import { Schedules } from "./schedules.js";
import { Sinks } from "./sinks.js";

/** Name in the address, title, and the part of the title that a narrow page leaves out. */
const VIEWS = [["", "Overview"], ["ahead", "Ahead"], ["messages", "Messages"], ["dead", "Dead", " letters"], ["schedules", "Schedules"], ["sinks", "Sinks", " and sources"]];
/** Age at which numbers are out of date, in ms. */
const OLD = 10_000;
const asksForToken = document.documentElement.dataset.asksForToken === "yes";

/** `#/messages/R/ID?x=y` is `{path: ["messages", "R", "ID"], query: {x: "y"}}`. */
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return { path: path.split("/").map(decoded), query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function useAddress() {
  const [current, setCurrent] = useState(address);
  useEffect(() => {
    let shown = address().path.join("/");
    const change = () => {
      const next = address();
      setCurrent(next);
      // A filter that is typed changes the query alone.
      if (next.path.join("/") !== shown || next.query.route) scrollTo(0, 0);
      shown = next.path.join("/");
    };
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return current;
}

function App() {
  const [why, setWhy] = useState(asksForToken && !token.get() ? "" : null);
  useEffect(() => {
    const refused = ({ detail: { why } }) => {
      token.forget();
      setWhy(why);
    };
    events.addEventListener("unauthorized", refused);
    return () => events.removeEventListener("unauthorized", refused);
  }, []);
  /** A token that cannot read is refused. Without a reply the page shows that itself. */
  const enter = async (text) => {
    token.set(text);
    try {
      await get("overview");
    } catch ({ status }) {
      if (status === 401 || status === 403) return;
    }
    setWhy(null);
  };
  const leave = () => {
    token.forget();
    setWhy("");
  };
  return why === null ? html`<${Frame} leave=${asksForToken && leave} />` : html`<${SignIn} why=${why} enter=${enter} />`;
}

function SignIn({ why, enter }) {
  const [isBusy, setBusy] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("token").trim();
    if (!text) return;
    setBusy(true);
    enter(text).finally(() => setBusy(false));
  };
  return html`
    <main class="sign-in">
      <h1><img src="./icon.svg" alt="" width="28" height="28" /> punctual</h1>
      ${why && html`<p class="trouble" role="alert">${why}</p>`}
      <form onSubmit=${submit}>
        <label class="field wide">Token<input name="token" type="password" autocomplete="off" required autofocus /></label>
        <button class="primary" disabled=${isBusy}>Sign in</button>
      </form>
      <p class="muted">A token of <code>server.auth.tokens</code> with the right <code>read</code>. It is kept until this tab is closed.</p>
    </main>`;
}

function Frame({ leave }) {
  const { path, query } = useAddress();
  const { data: overview, problem, at } = usePoll(async (signal) => {
    const reply = await get("overview", {}, signal);
    remember(reply);
    return reply;
  }, []);
  const last = useRef();
  // While Redis is down, the latest numbers stay.
  if (overview?.routes) last.current = { routes: overview.routes, at };
  const shown = overview && { ...overview, routes: overview.routes ?? last.current?.routes ?? null };
  const view = VIEWS.find(([name]) => name === path[0]) ?? VIEWS[0];
  const isFind = path[0] === "find";
  const isMessage = path[0] === "messages" && path.length === 3;
  useEffect(() => {
    document.title = `${isMessage ? path[2] : query.route && view === VIEWS[0] ? query.route : view.slice(1).join("")} · punctual`;
  }, [path.join("/"), query.route]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="./icon.svg" alt="" width="22" height="22" />punctual</a>
      <nav aria-label="Views">${VIEWS.map(([name, title, more]) => html`
        <a key=${name} href=${link(name)} aria-current=${name === view[0] && !isFind ? "page" : undefined}>${title}<span>${more}</span></a>`)}</nav>
      <${Field} name="find" label="Find an id" most="128" onEnter=${(id) => id && (location.hash = link("find", { id }))} />
      ${leave && html`<button class="small" onClick=${leave}>Sign out</button>`}
    </header>
    <${Banners} overview=${overview} problem=${problem} at=${at} last=${last.current} />
    <main id="main" tabindex="-1">
      ${!shown && !problem && html`<${Loading} />`}
      ${shown && (isMessage
        ? html`<${Message} overview=${shown} route=${path[1]} id=${path[2]} />`
        : isFind ? html`<${Find} key=${query.id} query=${query} />`
        : view[0] === "ahead" ? html`<${Ahead} query=${query} />`
        : view[0] === "messages" && query.state === "flows" ? html`<${Flows} overview=${shown} query=${query} />`
        : view[0] === "messages" ? html`<${Messages} overview=${shown} query=${query} />`
        : view[0] === "dead" ? html`<${Dead} overview=${shown} query=${query} />`
        : view[0] === "schedules" ? html`<${Schedules} overview=${shown} query=${query} />`
        : view[0] === "sinks" ? html`<${Sinks} overview=${shown} />`
        : html`<${Overview} key=${query.route} overview=${shown} query=${query} />`)}
    </main>
    ${overview && html`<${Foot} overview=${overview} problem=${problem} />`}
    <${Dialogs} />`;
}

/** Banners about the whole page. */
function Banners({ overview, problem, at, last }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const age = at && Date.now() - at;
  const redis = overview?.redis;
  const banner = (title, text) => html`<div class="banner" role="alert"><b>${title}</b> <${Text} tag="span">${text}</${Text}></div>`;
  if (problem) {
    if (problem.status === 401) return null;
    if (problem.status) return html`<div class="banner"><${Trouble} problem=${problem} /></div>`;
    return banner("No reply.", `${problem.message}.${at ? ` The numbers are ${duration(Math.round(age / 1000))} old.` : ""}`);
  }
  if (redis && !redis.up) {
    const old = last ? ` The numbers of the routes are ${duration(Math.round((Date.now() - last.at) / 1000))} old.` : "";
    return banner("Redis is down.", `${redis.error}. Nothing is accepted or delivered; messages that Redis has are kept.${old}`);
  }
  if (redis?.error || overview?.instance.ready === false) return banner("Not ready.", redis.error ?? "");
  if (age > OLD && !document.hidden) return banner("No reply.", `The numbers are ${duration(Math.round(age / 1000))} old.`);
  return null;
}

function Foot({ overview: { instance, token: caller }, problem }) {
  const started = new Date(now() - instance.uptime_seconds * 1000).toISOString();
  return html`
    <footer>
      <${Lamp} state=${problem ? "bad" : instance.ready ? "good" : "warn"}>${instance.host}, process ${instance.process}</${Lamp}>
      <span>punctual ${instance.version}</span>
      <span>started <${Time} at=${started} far="only" /></span>
      ${seen() > 1 && html`<b>This address leads to ${seen()} instances: rates, lateness, sinks and sources are those of the one named here.</b>`}
      ${caller.name !== null && html`<span>token <${Text}>${caller.name}</${Text}>: ${caller.rights.join(", ")}${caller.routes ? `; ${caller.routes.length} of the routes` : ""}</span>`}
    </footer>`;
}

document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
