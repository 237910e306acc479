// Runs: the run folders the server watches; one of them as curves that grow while it trains.

import { chart, key, tidy } from "../chart.js";
import { field, make, swap } from "../draw.js";

const EVERY = 2000; // milliseconds between two looks
const ASIDE = new Set(["step", "split", "rate", "gradient_norm", "epoch", "seconds", "tokens"]);
const FLOORED = new Set(["masked_lm", "causal_lm", "causal_lm_backward", "span_boundary"]);

export const runs = {
  name: "runs",

  open(place, { t, ask, work, keep, signal }) {
    const list = make("select", { id: "run", on: { change: () => { follow(list.value); } } });
    const figures = make("select", { id: "figure", on: { change: () => { keep.figure = figures.value; draw(); } } });
    const state = make("span", { class: "state", id: "state" });
    const picture = make("div", { class: "picture", id: "picture" });
    const says = make("p", { class: "rest", id: "runs-says", "aria-live": "off" });
    const legend = make("ul", { class: "legend" }, key("train", t.train), key("held-out", t.heldOut), key("floor", t.floor));
    place.append(make("div", { class: "fields" }, field(t.run, list), field(t.figure, figures), state), picture, says, legend);
    let rows = [], next = 0, floor = null, looking = false;
    const timer = setInterval(() => looking || look(), EVERY); // a slow answer is awaited, not asked for again
    const resized = new ResizeObserver(() => draw());
    resized.observe(picture);
    signal.addEventListener("abort", () => { clearInterval(timer); resized.disconnect(); });
    look();

    function follow(name) {
      [keep.run, rows, next] = [name, [], 0];
      look();
    }

    async function look() {
      looking = true;
      const answer = await work(async () => {
        const { runs: all } = await ask("/runs");
        if (!all.length) return { all, found: null };
        if (!all.some(({ name }) => name === keep.run)) [keep.run, rows, next] = [all[0].name, [], 0];
        const found = await ask(`/runs/rows?${new URLSearchParams({ run: keep.run, after: next })}`);
        return { all, found };
      });
      looking = false;
      if (answer === null) return;
      if (answer.found === null) return picture.replaceChildren(make("p", { class: "rest" }, t.none));
      take(answer);
    }

    function take({ all, found }) {
      if (found.run !== keep.run) return;
      const grown = next === 0 || found.restarted || found.rows.length > 0;
      rows = (found.restarted ? [] : rows).concat(found.rows);
      const more = found.next > next && found.rows.length > 0;
      [next, floor] = [found.next, found.floor];
      offer(list, all.map(({ name }) => name), keep.run);
      const known = [...new Set(rows.flatMap(Object.keys))].filter((name) => !ASIDE.has(name));
      if (!known.includes(keep.figure)) keep.figure = known.find((name) => FLOORED.has(name)) ?? known[0];
      offer(figures, known, keep.figure);
      state.textContent = t.states[found.state];
      state.dataset.state = found.state;
      if (grown) draw();
      if (more && found.rows.length > 1000) look(); // a long file comes in several answers
    }

    function draw() {
      const of = (split) => rows.filter((row) => row.split === split && Number.isFinite(row[keep.figure])).map((row) => [row.step, row[keep.figure]]);
      const series = [{ name: t.train, kind: "train", points: of("train") }, { name: t.heldOut, kind: "held-out", points: of("held-out") }];
      if (!series.some(({ points }) => points.length)) {
        picture.replaceChildren(make("p", { class: "rest" }, t.noRows));
        return;
      }
      const shown = FLOORED.has(keep.figure) && floor !== null ? { name: t.floor, value: floor } : null;
      const read = (name, [step, value]) => { says.textContent = t.caption(name, step.toLocaleString("en"), tidy(value)); };
      swap(picture, [chart({ series, floor: shown, width: Math.max(300, picture.clientWidth), stepName: t.step, read })]);
      const last = series.map(({ name, points }) => (points.length ? t.caption(name, ...reading(points.at(-1))) : null));
      says.textContent = last.filter(Boolean).join(" · ");
    }
  },
};

const reading = ([step, value]) => [step.toLocaleString("en"), tidy(value)];

/** Fills a select, unless it shows these choices already. */
function offer(select, names, chosen) {
  if ([...select.options].map((one) => one.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => make("option", {}, name)));
  }
  select.value = chosen;
}
