// Attention: a text in; all heads as small pictures, the chosen one as lines and as a matrix.

import { field, make, paused, percent, shape } from "../draw.js";

const ROW = 26; // height of a token in the picture of lines
const LINES_WIDTH = 420;
const EDGE = 132; // where lines begin and end
const THUMB = 40;

export const attention = {
  name: "attention",
  rank: (model) => model.can.includes("attention"),

  open(place, { t, ask, work, keep }) {
    const text = make("input", { id: "attention-text", type: "text", spellcheck: "false", value: keep.text ?? t.example });
    const overview = make("div", { class: "heads", id: "heads", role: "grid", "aria-label": t.overview });
    const title = make("h2", { id: "head-title" });
    const says = make("p", { class: "rest", id: "attention-says", "aria-live": "polite" }, t.rest);
    const lines = make("div", { class: "scroll", id: "lines" });
    const matrix = make("div", { class: "scroll", id: "matrix" });
    const soon = paused(run);
    text.addEventListener("input", () => { keep.text = text.value; soon(); });
    overview.addEventListener("keydown", move);
    place.append(
      field(t.text, text),
      make("div", { class: "overview" }, make("h2", {}, t.overview), make("p", { class: "rest" }, t.overviewHint), make("div", { class: "scroll" }, overview)),
      title, says,
      make("div", { class: "pair" }, make("section", {}, make("h3", {}, t.lines), lines), make("section", {}, make("h3", {}, t.matrix), matrix)),
    );
    let found = null;
    run();

    async function run() {
      const asked = text.value.trim();
      if (!asked) return;
      const answer = await work(() => ask("/attention", { text: asked }));
      if (answer === null) return;
      found = answer;
      keep.layer = Math.min(keep.layer ?? 0, answer.layers.length - 1);
      keep.head = Math.min(keep.head ?? 0, answer.heads - 1);
      drawOverview();
      show();
    }

    function drawOverview() {
      const rows = found.weights.map((heads, layer) => make("div", { role: "row", class: "head-row" }, heads.map((weights, head) => {
        const choose = () => { keep.layer = layer; keep.head = head; show(); };
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
      show();
      overview.children[keep.layer].children[keep.head].focus();
    }

    function show() {
      [...overview.children].forEach((row, layer) => [...row.children].forEach((cell, head) => {
        const chosen = layer === keep.layer && head === keep.head;
        cell.setAttribute("aria-selected", String(chosen));
        cell.tabIndex = chosen ? 0 : -1;
      }));
      title.textContent = t.head(keep.layer + 1, keep.head + 1);
      const weights = found.weights[keep.layer][keep.head];
      says.textContent = t.rest;
      lines.replaceChildren(drawLines(found.tokens, weights, { point, name: t.lines }));
      matrix.replaceChildren(drawMatrix(found.tokens, weights, { point, cell, t }));
    }

    function point(token) {
      for (const picture of [lines, matrix]) {
        picture.firstChild.classList.toggle("pointed", token !== null);
        for (const one of picture.querySelectorAll("[data-from]")) one.classList.toggle("on", Number(one.dataset.from) === token);
      }
      if (token === null) { says.textContent = t.rest; return; }
      const row = found.weights[keep.layer][keep.head][token];
      const best = row.map((share, to) => [share, to]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      says.textContent = best.map(([share, to]) => t.cell(found.tokens[token], found.tokens[to], percent(share))).join(" · ");
    }

    function cell(from, to) {
      says.textContent = t.cell(found.tokens[from], found.tokens[to], percent(found.weights[keep.layer][keep.head][from][to]));
    }
  },
};

/** A head as a picture of THUMB points square; the ink comes from the stylesheet. */
function thumbnail(weights) {
  const size = THUMB / weights.length;
  const spots = [];
  weights.forEach((row, from) => row.forEach((share, to) => {
    if (share > 0.04) spots.push(shape("rect", { x: to * size, y: from * size, width: size, height: size, "fill-opacity": share }));
  }));
  return shape("svg", { viewBox: `0 0 ${THUMB} ${THUMB}`, class: "thumb", "aria-hidden": "true" }, spots);
}

function drawLines(tokens, weights, { point, name }) {
  const height = tokens.length * ROW;
  const middle = (token) => token * ROW + ROW / 2;
  const bend = LINES_WIDTH / 2;
  const strokes = weights.flatMap((row, from) => row.map((share, to) => (share < 0.02 ? null : shape("path", {
    d: `M${EDGE} ${middle(from)}C${bend} ${middle(from)} ${bend} ${middle(to)} ${LINES_WIDTH - EDGE} ${middle(to)}`,
    class: "line", "data-from": from, "stroke-opacity": 0.08 + 0.92 * share, "stroke-width": 1 + 2.5 * share,
  }))));
  const left = tokens.map((token, index) => shape("text", {
    x: EDGE - 10, y: middle(index), class: "token from", "text-anchor": "end", tabindex: "0", "data-from": index,
    on: { pointerenter: () => point(index), pointerleave: () => point(null), focus: () => point(index), blur: () => point(null) },
  }, short(token)));
  const right = tokens.map((token, index) => shape("text", { x: LINES_WIDTH - EDGE + 10, y: middle(index), class: "token" }, short(token)));
  const settings = { viewBox: `0 0 ${LINES_WIDTH} ${height}`, class: "lines", role: "group", "aria-label": name, style: { "max-width": `${LINES_WIDTH}px` } };
  return shape("svg", settings, strokes, left, right);
}

function drawMatrix(tokens, weights, { point, cell, t }) {
  const side = Math.min(ROW, 288 / tokens.length);
  const left = 96, top = 84, size = side * tokens.length;
  const name = (token, index, settings) => shape("text", { class: "token small", ...settings(left - 8, index * side + side / 2) }, short(token));
  const columns = tokens.map((token, index) => name(token, index, (edge, middle) => ({ transform: `translate(${left + middle} ${top - 8}) rotate(-60)` })));
  const rows = tokens.map((token, index) => name(token, index, (edge, middle) => ({ x: edge, y: top + middle, "text-anchor": "end", "data-from": index })));
  const cells = weights.flatMap((row, from) => row.map((share, to) => shape("rect", {
    x: left + to * side, y: top + from * side, width: side, height: side, class: "cell", "data-from": from, "fill-opacity": share,
    on: { pointerenter: () => { point(from); cell(from, to); }, pointerleave: () => point(null) },
  })));
  const frame = shape("rect", { x: left, y: top, width: size, height: size, class: "frame" });
  const settings = { viewBox: `0 0 ${left + size + 44} ${top + size + 4}`, class: "matrix", role: "img", "aria-label": `${t.from} × ${t.to}`, style: { "max-width": `${left + size + 44}px` } };
  return shape("svg", settings, frame, cells, columns, rows);
}

const short = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);
