// Heads as pictures: all of them small, the chosen one as lines and as a matrix. Rows look at columns.

import { make, percent, shape } from "./draw.js";

const ROW = 26; // height of a token in the picture of lines
const LINES_WIDTH = 420;
const EDGE = 132; // where lines begin and end
const THUMB = 40;

/** The pictures, empty at first. `show({ from, to, layers, heads, weights })` draws them; `keep` has the chosen head. */
export function headPictures({ t, keep, saysId }) {
  const overview = make("div", { class: "heads", id: "heads", role: "grid", "aria-label": t.overview });
  const title = make("h2", { id: "head-title" });
  const says = make("p", { class: "rest", id: saysId, "aria-live": "polite" }, t.rest);
  const lines = make("div", { class: "scroll", id: "lines" });
  const matrix = make("div", { class: "scroll", id: "matrix" });
  let found = null;
  overview.addEventListener("keydown", move);
  const parts = [
    make("div", { class: "overview" }, make("h2", {}, t.overview), make("p", { class: "rest" }, t.overviewHint), make("div", { class: "scroll" }, overview)),
    title, says,
    make("div", { class: "pair" }, make("section", {}, make("h3", {}, t.lines), lines), make("section", {}, make("h3", {}, t.matrix), matrix)),
  ];
  return { parts, show };

  function show(answer) {
    found = answer;
    keep.layer = Math.min(keep.layer ?? 0, answer.layers.length - 1);
    keep.head = Math.min(keep.head ?? 0, answer.heads - 1);
    drawOverview();
    drawHead();
  }

  function drawOverview() {
    const rows = found.weights.map((heads, layer) => make("div", { role: "row", class: "head-row" }, heads.map((weights, head) => {
      const choose = () => { keep.layer = layer; keep.head = head; drawHead(); };
      const label = t.head(layer + 1, head + 1);
      return make("button", { type: "button", role: "gridcell", title: label, "aria-label": label, on: { click: choose } }, thumbnail(weights));
    })));
    overview.replaceChildren(...rows);
  }

  function move(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step || found === null) return;
    event.preventDefault();
    keep.layer = (keep.layer + step[0] + found.layers.length) % found.layers.length;
    keep.head = (keep.head + step[1] + found.heads) % found.heads;
    drawHead();
    overview.children[keep.layer].children[keep.head].focus();
  }

  function drawHead() {
    [...overview.children].forEach((row, layer) => [...row.children].forEach((cell, head) => {
      const chosen = layer === keep.layer && head === keep.head;
      cell.setAttribute("aria-selected", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }));
    title.textContent = t.head(keep.layer + 1, keep.head + 1);
    const weights = found.weights[keep.layer][keep.head];
    says.textContent = t.rest;
    lines.replaceChildren(drawLines(found, weights, { point, name: t.lines }));
    matrix.replaceChildren(drawMatrix(found, weights, { point, cell, t }));
  }

  function point(token) {
    for (const picture of [lines, matrix]) {
      picture.firstChild.classList.toggle("pointed", token !== null);
      for (const one of picture.querySelectorAll("[data-from]")) one.classList.toggle("on", Number(one.dataset.from) === token);
    }
    if (token === null) { says.textContent = t.rest; return; }
    const row = found.weights[keep.layer][keep.head][token];
    const best = row.map((share, to) => [share, to]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    says.textContent = best.map(([share, to]) => t.cell(found.from[token], found.to[to], percent(share))).join(" · ");
  }

  function cell(from, to) {
    says.textContent = t.cell(found.from[from], found.to[to], percent(found.weights[keep.layer][keep.head][from][to]));
  }
}

/** A head as a picture of THUMB points square; the ink comes from the stylesheet. */
function thumbnail(weights) {
  const high = THUMB / weights.length;
  const wide = THUMB / weights[0].length;
  const spots = [];
  weights.forEach((row, from) => row.forEach((share, to) => {
    if (share > 0.04) spots.push(shape("rect", { x: to * wide, y: from * high, width: wide, height: high, "fill-opacity": share }));
  }));
  return shape("svg", { viewBox: `0 0 ${THUMB} ${THUMB}`, class: "thumb", "aria-hidden": "true" }, spots);
}

function drawLines({ from: writers, to: readers }, weights, { point, name }) {
  const height = Math.max(writers.length, readers.length) * ROW;
  const middle = (token) => token * ROW + ROW / 2;
  const bend = LINES_WIDTH / 2;
  const strokes = weights.flatMap((row, from) => row.map((share, to) => (share < 0.02 ? null : shape("path", {
    d: `M${EDGE} ${middle(from)}C${bend} ${middle(from)} ${bend} ${middle(to)} ${LINES_WIDTH - EDGE} ${middle(to)}`,
    class: "line", "data-from": from, "stroke-opacity": 0.08 + 0.92 * share, "stroke-width": 1 + 2.5 * share,
  }))));
  const left = writers.map((token, index) => shape("text", {
    x: EDGE - 10, y: middle(index), class: "token from", "text-anchor": "end", tabindex: "0", "data-from": index,
    on: { pointerenter: () => point(index), pointerleave: () => point(null), focus: () => point(index), blur: () => point(null) },
  }, short(token)));
  const right = readers.map((token, index) => shape("text", { x: LINES_WIDTH - EDGE + 10, y: middle(index), class: "token" }, short(token)));
  const settings = { viewBox: `0 0 ${LINES_WIDTH} ${height}`, class: "lines", role: "group", "aria-label": name, style: { "max-width": `${LINES_WIDTH}px` } };
  return shape("svg", settings, strokes, left, right);
}

function drawMatrix({ from: writers, to: readers }, weights, { point, cell, t }) {
  const side = Math.min(ROW, 288 / Math.max(writers.length, readers.length));
  const left = 96, top = 84, width = side * readers.length, height = side * writers.length;
  const middle = (index) => index * side + side / 2;
  const columns = readers.map((token, index) => shape("text", { class: "token small", transform: `translate(${left + middle(index)} ${top - 8}) rotate(-60)` }, short(token)));
  const rows = writers.map((token, index) => shape("text", { class: "token small", x: left - 8, y: top + middle(index), "text-anchor": "end", "data-from": index }, short(token)));
  const cells = weights.flatMap((row, from) => row.map((share, to) => shape("rect", {
    x: left + to * side, y: top + from * side, width: side, height: side, class: "cell", "data-from": from, "fill-opacity": share,
    on: { pointerenter: () => { point(from); cell(from, to); }, pointerleave: () => point(null) },
  })));
  const frame = shape("rect", { x: left, y: top, width, height, class: "frame" });
  const settings = { viewBox: `0 0 ${left + width + 44} ${top + height + 4}`, class: "matrix", role: "img", "aria-label": `${t.from} × ${t.to}`, style: { "max-width": `${left + width + 44}px` } };
  return shape("svg", settings, frame, cells, columns, rows);
}

const short = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);
