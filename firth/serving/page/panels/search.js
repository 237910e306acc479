// Search: a question in; the passages of the server's index that are nearest to it, each with its place.

import { field, make, paused, swap } from "../draw.js";

const TOP = 8;

export const search = {
  name: "search",
  rank: (model) => model.can.includes("search"),

  open(place, { t, ask, work, keep }) {
    const query = make("input", { id: "search-query", type: "text", value: keep.query ?? t.example });
    const list = make("ol", { class: "hits", id: "search-list", "aria-live": "polite" });
    const soon = paused(run);
    query.addEventListener("input", () => { keep.query = query.value; soon(); });
    place.append(field(t.query, query), list);
    run();

    async function run() {
      const asked = query.value.trim();
      if (!asked) return;
      const answer = await work(() => ask("/search", { query: asked, top: TOP }));
      if (answer === null) return;
      const found = answer.hits.map(({ text, file, line, score }) =>
        make("li", {}, make("p", { class: "hit-text" }, text), make("p", { class: "hit-place" }, `${score.toFixed(2)} · ${file}:${line}`)));
      swap(list, found.length ? found : [make("li", {}, make("p", { class: "hit-text" }, t.nothing))]);
    }
  },
};
