// Compare: lines of text in; the cosine of every two as a matrix.

import { field, make, paused } from "../draw.js";

export const compare = {
  name: "compare",
  rank: (model) => (model.can.includes("predict") ? 1 : 2), // vectors trained for a task of their own come last

  open(place, { t, ask, work, keep }) {
    const texts = make("textarea", { id: "compare-texts", rows: "6", spellcheck: "false", value: keep.texts ?? t.example.join("\n") });
    const result = make("div", { class: "scroll", id: "similarities" });
    const soon = paused(run);
    texts.addEventListener("input", () => { keep.texts = texts.value; soon(); });
    place.append(field(t.texts, texts), result);
    run();

    async function run() {
      const lines = texts.value.split("\n").filter((line) => line.trim());
      if (lines.length < 2) return result.replaceChildren(make("p", { class: "rest" }, t.few));
      const answer = await work(() => ask("/similarity", { texts: lines }));
      if (answer !== null) result.replaceChildren(table(lines, answer.similarities));
    }
  },
};

function table(lines, similarities) {
  const head = make("tr", {}, make("th", {}), make("td", {}), lines.map((_, index) => make("th", { scope: "col" }, String(index + 1))));
  const rows = lines.map((line, index) => make("tr", {},
    make("th", { scope: "row" }, String(index + 1)),
    make("td", { class: "line", title: line }, line),
    similarities[index].map((cosine, other) => value(cosine, index === other))));
  return make("table", { class: "similar" }, make("thead", {}, head), make("tbody", {}, rows));
}

function value(cosine, same) {
  const share = Math.max(0, Math.min(1, cosine));
  return make("td", { class: `cosine${same ? " same" : ""}${share > 0.6 ? " deep" : ""}`, style: { "--share": share.toFixed(3) } }, cosine.toFixed(2).replace("-", "−"));
}
