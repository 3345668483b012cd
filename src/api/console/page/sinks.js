// The view of sinks and sources: their state, its start and its cause.

import { count, Time } from "./format.js";
import { Empty, Fact, Lamp, link, sinkLamp, sourceLamp, Text } from "./parts.js";
import { html } from "./preact.js";

/** Maximum number of down domains that are shown by name. */
const DOMAINS = 20;

export function Sinks({ overview }) {
  const { sinks, sources, routes } = overview;
  return html`
    <h1>Sinks and sources</h1>
    <p class="lead">As this instance sees them. While one is down its messages wait, and no attempt counts.</p>
    <h2>Sinks</h2>
    ${!sinks.length && html`<${Empty}>No sink is configured.</${Empty}>`}
    <div class="tiles">${sinks.map((sink) => html`<${Sink} key=${sink.name} sink=${sink} routes=${routes} />`)}</div>
    <h2>Sources</h2>
    ${!sources.length && html`<${Empty}>No source is configured.</${Empty}>`}
    <div class="tiles">${sources.map((source) => html`<${Source} key=${source.name} source=${source} />`)}</div>`;
}

function Head({ thing, lamp: [state, text] }) {
  return html`<header><h3>${thing.name}</h3><span class="muted">${thing.type}</span><${Lamp} state=${state}>${text}</${Lamp}></header>`;
}

const LastError = ({ thing, lamp: [state] }) =>
  thing.last_error && html`<${Text} tag="p" class=${state === "good" ? "more" : "error"}>${thing.last_error}</${Text}>`;

const routeLinks = (names) => names.map((name, n) => html`${n ? ", " : ""}<a href=${link("messages", { route: name })}>${name}</a>`);

function Sink({ sink, routes }) {
  const own = (routes ?? []).filter((route) => route.sink === sink.name).map((route) => route.route);
  const more = sink.down_domains.length - DOMAINS;
  const isFailing = sink.check && sink.check !== "ok" && sink.check !== sink.last_error;
  return html`
    <article class="tile" aria-label="Sink ${sink.name}">
      <${Head} thing=${sink} lamp=${sinkLamp(sink)} />
      <${LastError} thing=${sink} lamp=${sinkLamp(sink)} />
      ${isFailing && html`<p class="error">check: <${Text}>${sink.check}</${Text}></p>`}
      <dl class="lines">
        <${Fact} name="Since"><${Time} at=${sink.since} /></${Fact}>
        <${Fact} name="Last success"><${Time} at=${sink.last_success_at} /></${Fact}>
        <${Fact} name="Last error"><${Time} at=${sink.last_error_at} /></${Fact}>
        <${Fact} name="In flight">${count(sink.in_flight)}</${Fact}>
        <${Fact} name="Routes">${own.length ? routeLinks(own) : "none"}</${Fact}>
      </dl>
      ${sink.down_domains.length > 0 && html`
        <h4>Domains that are down</h4>
        <ul class="domains">${sink.down_domains.slice(0, DOMAINS).map(({ name, error, since }) => html`
          <li key=${name}><${Lamp} state="bad"><${Text}>${name}</${Text}></${Lamp}> <span class="muted">since <${Time} at=${since} /></span> <${Text} tag="span" class="more">${error}</${Text}></li>`)}</ul>
        ${more > 0 && html`<p class="muted">and ${count(more)} more</p>`}`}
    </article>`;
}

function Source({ source }) {
  return html`
    <article class="tile" aria-label="Source ${source.name}">
      <${Head} thing=${source} lamp=${sourceLamp(source)} />
      <${LastError} thing=${source} lamp=${sourceLamp(source)} />
      <dl class="lines">
        <${Fact} name="Since"><${Time} at=${source.since} /></${Fact}>
        <${Fact} name="Last error"><${Time} at=${source.last_error_at} /></${Fact}>
        <${Fact} name="Last messages taken"><${Time} at=${source.last_success_at} /></${Fact}>
        <${Fact} name="Wait in its system">${source.depth === undefined ? "unknown" : count(source.depth)}</${Fact}>
        <${Fact} name="Route">${routeLinks([source.route])}</${Fact}>
      </dl>
    </article>`;
}
