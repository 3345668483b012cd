// The view of all messages with one id, over all routes.

import { get, usePoll } from "./api.js";
import { Time } from "./format.js";
import { Empty, Loading, messagePath, Text, Trouble } from "./parts.js";
import { html, useEffect } from "./preact.js";

const STATES = { unack: "in flight" };

export function Find({ query: { id = "" } }) {
  const { data, problem } = usePoll((signal) => get(`messages/${encodeURIComponent(id)}`, {}, signal), [id]);
  const found = data?.messages ?? [];
  const path = (message) => `#/${messagePath(message.route, message.id)}`;
  useEffect(() => {
    if (found.length === 1 && !data.failed.length) location.replace(path(found[0]));
  }, [data]);
  return html`
    <h1>Messages with the id <${Text} class="id">${id}</${Text}></h1>
    <${Trouble} problem=${problem} />
    ${!data && !problem && html`<${Loading} />`}
    ${data?.failed.map(({ route, error }) => html`<p class="trouble">Route ${route} could not be asked: <${Text}>${error}</${Text}></p>`)}
    ${data && !found.length && html`<${Empty}>No route has it. A message that was delivered is known only to a route with a history, or one that remembers ids.</${Empty}>`}
    ${found.length > 0 && html`<ul class="lamps" aria-label="Found">${found.map((message) => html`
      <li key=${message.route}><a href=${path(message)}>${message.route}</a> <span class="muted">${STATES[message.state] ?? message.state}</span>
        <span class="right"><${Time} at=${message.ended_at ?? message.died_at ?? message.deliver_at} /></span></li>`)}</ul>`}`;
}
