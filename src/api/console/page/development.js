// The clock and the inbox of `punctual dev`, above the views.

import { call, changed, get, usePoll } from "./api.js";
import { Text, Trouble } from "./parts.js";
import { html, render, useState } from "./preact.js";

const STEPS = ["1s", "1m", "10m", "1h", "1d"];
/** Messages of the inbox that are shown. */
const SHOWN = 20;

function Development() {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const { data } = usePoll(async (signal) => {
    const [clock, inbox] = await Promise.all([get("clock", {}, signal), get("inbox", {}, signal)]);
    return { clock, inbox };
  }, []);
  if (!data) return null;
  const act = async (method, path, body) => {
    setBusy(true);
    setProblem(null);
    try {
      await call(method, path, { body });
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
    changed();
  };
  const { clock, inbox } = data;
  const latest = inbox.messages.slice(-SHOWN).reverse();
  return html`
    <section class="development" aria-label="Development">
      <p>
        <b>Development clock</b> <time>${clock.now.replace("T", " ").replace("Z", " UTC")}</time>
        ${STEPS.map((by) => html`<button key=${by} class="small" disabled=${busy} onClick=${() => act("POST", "clock/advance", { by })}>+${by}</button>`)}
      </p>
      <${Trouble} problem=${problem} />
      <details>
        <summary>Inbox: ${inbox.count} ${inbox.count === 1 ? "message" : "messages"}</summary>
        <button class="small" disabled=${busy} onClick=${() => act("DELETE", "inbox")}>Empty the inbox</button>
        <ol>${latest.map((one) => html`
          <li key=${`${one.route} ${one.id} ${one.delivered_at}`}>
            <time>${one.delivered_at}</time> <b>${one.route}</b> <${Text}>${one.id}</${Text}>
            ${" "}<${Text} tag="code">${(one.payload ?? one.payload_base64).slice(0, 200)}</${Text}>
          </li>`)}</ol>
      </details>
    </section>`;
}

const place = document.createElement("div");
document.body.prepend(place);
render(html`<${Development} />`, place);
