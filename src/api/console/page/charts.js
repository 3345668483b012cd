// Charts as inline SVG.

import { count, rate } from "./format.js";
import { html, useRef } from "./preact.js";

const WIDTH = 300;
const HEIGHT = 44;

/** Deliveries per second as an area, failures as a line over it. `points`: those of `history.work`. */
export function Curve({ points, label }) {
  const most = Math.max(0, ...points.map((point) => point.delivered));
  const top = Math.max(1, most, ...points.map((point) => point.failed));
  const path = (name) => points.map((point) => `${(point.x * WIDTH).toFixed(1)} ${(HEIGHT - 1 - (point[name] / top) * (HEIGHT - 5)).toFixed(1)}`).join(" L ");
  return html`
    <svg class="curve" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${label}: at most ${rate(most)} delivered per second">
      <line class="ground" x1="0" x2=${WIDTH} y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
      ${points.length > 1 && html`
        <path class="area" d="M ${(points[0].x * WIDTH).toFixed(1)} ${HEIGHT} L ${path("delivered")} L ${WIDTH} ${HEIGHT} Z" />
        <path class="line" d="M ${path("delivered")}" />
        ${points.some(({ failed }) => failed > 0) && html`<path class="failed" d="M ${path("failed")}" />`}`}
    </svg>`;
}

/**
 * Bars, each a link: `bars` of `{count, href, label}`. Tab reaches the first one, the arrow keys the others.
 * `ticks`: texts below the bars, evenly spaced.
 */
export function Bars({ bars, ticks, label }) {
  const list = useRef();
  const top = Math.max(0, ...bars.map((bar) => Number(bar.count)));
  const go = (event) => {
    const links = [...list.current.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    links[Math.max(0, Math.min(next, links.length - 1))].focus();
  };
  const width = 100 / bars.length;
  return html`
    <div class="bars">
      <div class="plot">
        <span class="top" aria-hidden="true">${top ? count(top) : ""}</span>
        <svg ref=${list} viewBox="0 0 100 60" preserveAspectRatio="none" role="group" aria-label=${label} onKeyDown=${go}>
          ${bars.map((bar, n) => {
            const height = bar.count ? Math.max(1.5, (Number(bar.count) / top) * 58) : 0;
            return html`
              <a key=${n} href=${bar.href} tabindex=${n ? -1 : 0} aria-label=${bar.label}>
                <title>${bar.label}</title>
                <rect class="reach" x=${n * width} y="0" width=${width} height="60" />
                <rect class="bar" x=${n * width + width * 0.12} y=${60 - height} width=${width * 0.76} height=${height} />
              </a>`;
          })}
          <line class="ground" x1="0" x2="100" y1="59.8" y2="59.8" />
        </svg>
      </div>
      <div class="ticks" aria-hidden="true">${ticks.map((tick) => html`<span>${tick}</span>`)}</div>
    </div>`;
}
