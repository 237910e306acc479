// Neighbours: a word in; the words with the nearest vectors as bars, each of them a step further.

import { bar, field, make, paused, swap } from "../draw.js";

const TOP = 15, LONGEST = 12;

export const neighbours = {
  name: "neighbours",
  // Word vectors first: the table of a model that reads context holds pieces, a tagger's without context holds features.
  rank: (model) => model.can.includes("neighbours") && (model.can.includes("meaning") ? 1 : model.can.includes("predict") ? 0 : 2),

  open(place, { t, ask, work, keep }) {
    keep.path ??= [];
    const word = make("input", { id: "neighbours-word", type: "text", spellcheck: "false", value: keep.word ?? t.example });
    const path = make("ol", { class: "path", id: "path", "aria-label": t.path });
    const list = make("ol", { class: "bars wide", id: "neighbour-list", "aria-live": "polite" });
    const soon = paused(run);
    word.addEventListener("input", () => { keep.word = word.value; soon(); });
    place.append(field(t.word, word), path, list);
    run();

    function go(to) {
      word.value = keep.word = to;
      run();
    }

    async function run() {
      const asked = word.value.trim();
      if (!asked) return;
      const answer = await work(() => ask("/neighbours", { word: asked, top: TOP }));
      if (answer === null) return;
      if (keep.path.at(-1) !== asked) keep.path = [...keep.path, asked].slice(-LONGEST);
      swap(path, keep.path.map((one) => make("li", {}, make("button", { type: "button", on: { click: () => go(one) } }, one))));
      swap(list, answer.neighbours.map(({ token, similarity }) =>
        bar({ name: token, share: Math.max(0, similarity), figure: similarity.toFixed(2), press: () => go(token) })));
    }
  },
};
