// A chart of lines over steps: series of points in, an SVG with axes, a dashed floor and a reading under the pointer out.

import { make, shape } from "./draw.js";

const HEIGHT = 340;
const LEFT = 52, RIGHT = 16, TOP = 16, BOTTOM = 36;

/** `series`: [{ name, points: [[step, value]], kind }]; `floor`: { name, value } or null. */
export function chart({ series, floor, width, stepName, read }) {
  const points = series.flatMap((one) => one.points);
  const values = [...points.map(([, value]) => value), ...(floor ? [floor.value] : [])];
  const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b)); // a long run has more points than a call takes arguments
  const lastStep = Math.max(1, most(points.map(([step]) => step)));
  const [low, high] = widened(-most(values.map((value) => -value)), most(values));
  const x = (step) => LEFT + (step / lastStep) * (width - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, class: "chart", role: "group", "aria-label": series.map(({ name }) => name).join(", "), tabindex: "0", id: "chart" },
    ticks(low, high, 5).map((value) => shape("g", {},
      shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" }),
      shape("text", { x: LEFT - 8, y: y(value), class: "tick", "text-anchor": "end" }, tidy(value)))),
    ticks(0, lastStep, Math.max(2, Math.floor(width / 130))).map((step) =>
      shape("text", { x: x(step), y: HEIGHT - 12, class: "tick", "text-anchor": "middle" }, step.toLocaleString("en"))),
    shape("text", { x: LEFT - 16, y: HEIGHT - 12, class: "tick", "text-anchor": "end" }, stepName),
    floor ? shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(floor.value), y2: y(floor.value), class: "floor" }) : null,
    floor ? shape("text", { x: width - RIGHT, y: y(floor.value) - 8, class: "tick floor-name", "text-anchor": "end" }, `${floor.name} ${tidy(floor.value)}`) : null,
    series.map((one) => drawn(one, x, y)));
  const cursor = shape("circle", { r: 5, class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  let at = -1; // the point the arrow keys stand on
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [mx, my] = [(event.clientX - box.left) * (width / box.width), (event.clientY - box.top) * (HEIGHT / box.height)];
    const near = nearest(series, (point) => Math.hypot((x(point[0]) - mx), 0.3 * (y(point[1]) - my)));
    if (near) show(near.name, near.point);
  });
  svg.addEventListener("keydown", (event) => {
    const { name, points: walked } = series.find((one) => one.points.length > 0);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: walked.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(walked.length - 1, next));
    show(name, walked[at]);
  });
  return svg;

  function show(name, point) {
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("cx", x(point[0]));
    cursor.setAttribute("cy", y(point[1]));
    read(name, point);
  }
}

function drawn({ points, kind }, x, y) {
  const path = points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const dots = kind === "held-out" || points.length === 1 ? points.map(([step, value]) => shape("circle", { cx: x(step), cy: y(value), r: 3.5, class: `dot ${kind}` })) : [];
  return shape("g", {}, shape("path", { d: path, class: `curve ${kind}` }), dots);
}

function nearest(series, distance) {
  let best = null;
  for (const { name, points } of series) {
    for (const point of points) {
      const far = distance(point);
      if (best === null || far < best.far) best = { name, point, far };
    }
  }
  return best;
}

function widened(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/** Round numbers between two values. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

export const tidy = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(4)).toString());

export const key = (kind, name) => make("li", {}, make("span", { class: `key ${kind}` }), name);
