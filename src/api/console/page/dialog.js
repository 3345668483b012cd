// The dialog for all actions: the effect, the count, the text to type, the progress, the error.

import { changed, events } from "./api.js";
import { count } from "./format.js";
import { Text, Trouble } from "./parts.js";
import { html, useEffect, useRef, useState } from "./preact.js";

/**
 * `title`; `text`: the effect; `verb`: the text of the button. Optional: `filter` describes the messages; `count()`
 * returns their number before the action, which `noun(number)` names; `typed` must be typed; `fields` of
 * `{name, label, type, ...}`; `isDanger`. `run(values, counted, progress)` acts and returns the text of the result.
 */
export const ask = (question) => events.dispatchEvent(new CustomEvent("ask", { detail: question }));

/** Shows the result of an action. */
export const say = (text) => events.dispatchEvent(new CustomEvent("said", { detail: text }));

export function Dialogs() {
  const [question, setQuestion] = useState(null);
  const [said, setSaid] = useState("");
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    events.addEventListener("ask", ({ detail }) => setQuestion({ ...detail, number: performance.now() }), controller);
    events.addEventListener("said", ({ detail }) => {
      clearTimeout(timer);
      setSaid(detail);
      timer = setTimeout(() => setSaid(""), 8000);
    }, controller);
    return () => controller.abort();
  }, []);
  return html`
    <div class="said ${said ? "" : "nothing"}" role="status"><${Text}>${said}</${Text}></div>
    ${question && html`<${Question} key=${question.number} ...${question} onEnd=${() => setQuestion(null)} />`}`;
}

function Question({ title, text, filter, verb, count: counting, noun, typed, fields = [], isDanger, run, onEnd }) {
  const dialog = useRef();
  const [counted, setCounted] = useState(counting ? undefined : null);
  const [values, setValues] = useState(Object.fromEntries(fields.map(({ name, initial }) => [name, initial ?? ""])));
  const [name, setName] = useState("");
  const [progress, setProgress] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  useEffect(() => {
    if (counting) counting().then(setCounted, setProblem);
  }, []);
  const isReady = progress === null && counted !== undefined && counted?.count !== 0 && (!typed || name === typed);
  const act = async (event) => {
    event.preventDefault();
    if (!isReady) return;
    setProblem(null);
    setProgress(0);
    try {
      const done = await run(values, counted, setProgress);
      onEnd();
      say(done);
    } catch (error) {
      setProblem(error);
      setProgress(null);
    }
    changed();
  };
  const set = (field) => (event) => setValues({ ...values, [field]: event.target.value });
  return html`
    <dialog ref=${dialog} aria-labelledby="question" onCancel=${(event) => progress !== null && event.preventDefault()} onClose=${onEnd}>
      <form onSubmit=${act}>
        <h2 id="question">${title}</h2>
        ${text && html`<p><${Text} tag="span">${text}</${Text}></p>`}
        ${filter && html`<p><${Text} tag="span">${filter}</${Text}></p>`}
        ${counting && html`<p class="counted ${isDanger ? "bad" : ""}" role="status">${
          counted ? html`<b>${count(counted.count)}</b> ${noun(counted.count)}${counted.more ? " or more" : ""}` : problem ? "" : "Counting…"}</p>`}
        ${fields.map(({ name: field, label, initial, ...rest }) => html`
          <label class="field wide" key=${field}>${label}<${rest.rows ? "textarea" : "input"} ...${rest} value=${values[field]} onInput=${set(field)} dir="auto" /></label>`)}
        ${typed && html`<label class="field wide">Type the route’s name, ${typed}, to confirm
          <input value=${name} onInput=${(event) => setName(event.target.value)} autocomplete="off" spellcheck="false" /></label>`}
        ${progress > 0 && html`<p role="status">${count(progress)} done…</p>`}
        <${Trouble} problem=${problem} />
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()} disabled=${progress !== null}>Back</button>
          <button class=${isDanger ? "danger" : "primary"} disabled=${!isReady}>${progress === null ? verb : "In progress…"}</button>
        </div>
      </form>
    </dialog>`;
}
