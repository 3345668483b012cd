// A payload as text, JSON or hexadecimal digits. It is always a text node, never HTML.

import { bytes } from "./format.js";
import { html, useMemo, useState } from "./preact.js";

/** Size of a part that is shown at once, to keep the layout fast: characters of text, bytes of hexadecimal digits. */
const TEXT_PART = 16 * 1024;
const HEX_PART = 4 * 1024;
/** Maximum size of formatted JSON, in characters; larger JSON is shown as text. */
const MAX_JSON = 256 * 1024;
const ROW = 16;

const encoder = new TextEncoder();

function fromBase64(text) {
  const decoded = atob(text);
  const data = new Uint8Array(decoded.length);
  for (let at = 0; at < data.length; at += 1) data[at] = decoded.charCodeAt(at);
  return data;
}

/** Indents JSON without reading its numbers: digits stay as they are. `undefined` if the text is not JSON. */
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

function hex(data, from, end) {
  const rows = [];
  for (let at = from; at < Math.min(end, data.length); at += ROW) {
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
  const [part, setPart] = useState(0);
  const form = forms.includes(picked) ? picked : json !== undefined ? "json" : forms[0];
  if (data === null) return html`<section class="panel" aria-label="Payload"><h2>Payload</h2><p class="trouble">${unreadable ?? "There is none."}</p></section>`;
  const whole = form === "json" ? json : payload;
  const all = form === "hex" ? data.length : whole.length;
  const size = form === "hex" ? HEX_PART : TEXT_PART;
  const [from, end] = [part * size, (part + 1) * size];
  const shown = form === "hex" ? hex(data, from, end) : whole.slice(from, end);
  const save = () => {
    const address = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
    Object.assign(document.createElement("a"), { href: address, download: id }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const names = { text: "Text", json: "JSON", hex: "Hex" };
  return html`
    <section class="panel" aria-label="Payload">
      <header class="row"><h2>Payload</h2><span class="muted">${bytes(data.length)}</span>
        <div class="choice" role="group" aria-label="Form">${forms.map((name) => html`
          <button key=${name} aria-pressed=${name === form} onClick=${() => { setPicked(name); setPart(0); }}>${names[name]}</button>`)}</div>
        <button class="small" onClick=${save}>Save</button>
      </header>
      ${data.length ? html`<pre class=${form} tabindex="0" dir=${form === "hex" ? "ltr" : "auto"} aria-label="Payload as ${names[form]}">${shown}</pre>` : html`<p class="empty">It is empty.</p>`}
      ${all > size && html`
        <p class="row parts"><button disabled=${!part} onClick=${() => setPart(part - 1)}>Previous part</button>
          <button disabled=${end >= all} onClick=${() => setPart(part + 1)}>Next part</button>
          <span class="muted">part ${part + 1} of ${Math.ceil(all / size)}</span></p>`}
    </section>`;
}
