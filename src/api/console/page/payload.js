// A payload as text, JSON or hexadecimal digits. It is always a text node, never HTML.

import { bytes as size } from "./format.js";
import { html, useMemo, useState } from "./preact.js";

/** What is shown at first, and at each "Show more": characters of text, bytes of hexadecimal digits. */
const TEXT_STEP = 32 * 1024;
const HEX_STEP = 2 * 1024;
/** Larger JSON, in characters, is shown as text. */
const MAX_JSON = 256 * 1024;
const ROW = 16;

const encoder = new TextEncoder();

const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Indents JSON without reading its numbers: digits stay as they are. `undefined` if it is none. */
export function indented(text) {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  return tokens.map((token, n) => {
    if (token === "{" || token === "[") {
      depth += 1;
      const isEmpty = tokens[n + 1] === "}" || tokens[n + 1] === "]";
      return isEmpty ? token : token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = tokens[n - 1] === "{" || tokens[n - 1] === "[";
      return isEmpty ? token : line() + token;
    }
    if (token === ",") return token + line();
    return token === ":" ? ": " : token;
  }).join("");
}

function hex(data, end) {
  const rows = [];
  for (let at = 0; at < Math.min(end, data.length); at += ROW) {
    const row = [...data.subarray(at, at + ROW)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(ROW * 3 - 1);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    rows.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${text}`);
  }
  return rows.join("\n");
}

export function Payload({ message: { payload, payload_base64: base64, unreadable, id } }) {
  const isText = payload !== undefined;
  const data = useMemo(() => (isText ? encoder.encode(payload) : base64 === undefined ? null : fromBase64(base64)), [payload, base64]);
  const json = useMemo(() => (isText && payload.length <= MAX_JSON && /^\s*[[{]/.test(payload) ? indented(payload) : undefined), [payload]);
  const forms = [isText && "text", json !== undefined && "json", "hex"].filter(Boolean);
  const [picked, setPicked] = useState(null);
  const [steps, setSteps] = useState(1);
  const form = forms.includes(picked) ? picked : json !== undefined ? "json" : forms[0];
  if (data === null) return html`<section class="panel" aria-label="Payload"><h2>Payload</h2><p class="trouble">${unreadable ?? "There is none."}</p></section>`;
  const whole = form === "json" ? json : payload;
  const all = form === "hex" ? data.length : whole.length;
  const end = steps * (form === "hex" ? HEX_STEP : TEXT_STEP);
  const shown = form === "hex" ? hex(data, end) : whole.slice(0, end);
  const save = () => {
    const address = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
    Object.assign(document.createElement("a"), { href: address, download: id }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const names = { text: "Text", json: "JSON", hex: "Hex" };
  return html`
    <section class="panel" aria-label="Payload">
      <header class="row"><h2>Payload</h2><span class="muted">${size(data.length)}</span>
        <div class="choice" role="group" aria-label="Form">${forms.map((name) => html`
          <button key=${name} aria-pressed=${name === form} onClick=${() => { setPicked(name); setSteps(1); }}>${names[name]}</button>`)}</div>
        <button class="small" onClick=${save}>Save</button>
      </header>
      ${data.length ? html`<pre class=${form} tabindex="0" dir=${form === "hex" ? "ltr" : "auto"} aria-label="Payload as ${names[form]}">${shown}</pre>` : html`<p class="empty">It is empty.</p>`}
      ${end < all && html`<p class="row"><button onClick=${() => setSteps(steps * 2)}>Show more</button><span class="muted">${size(form === "hex" ? end : encoder.encode(shown).length)} of ${size(form === "json" ? encoder.encode(json).length : data.length)} are shown</span></p>`}
    </section>`;
}
