// Rewrite: a text in, what the model writes for it out; and where each written token looked in the text.

import { field, make, paused, percent } from "../draw.js";
import { headPictures } from "../heads.js";

export const rewrite = {
  name: "rewrite",
  rank: (model) => model.can.includes("rewrite"),

  open(place, { t, all, ask, work, keep }) {
    const text = make("textarea", { id: "rewrite-text", rows: "3", spellcheck: "false", value: keep.text ?? t.example });
    const beams = make("select", { id: "rewrite-beams" }, [["", t.own], ["1", t.greedy], ["4", t.four]].map(([value, name]) =>
      make("option", { value, selected: value === (keep.beams ?? "") }, name)));
    const written = make("p", { class: "written", id: "written", "aria-live": "polite" });
    const figures = make("p", { class: "rest", id: "written-figures" });
    const pictures = headPictures({ t: { ...all.attention, cell: t.cell, rest: t.rest }, keep, saysId: "rewrite-says" });
    const looks = make("div", { hidden: true }, pictures.parts);
    const soon = paused(run);
    text.addEventListener("input", () => { keep.text = text.value; soon(); });
    beams.addEventListener("change", () => { keep.beams = beams.value; run(); });
    place.append(field(t.text, text), field(t.search, beams), make("h2", {}, t.result), written, figures, looks);
    run();

    async function run() {
      const asked = text.value.trim();
      if (!asked) return;
      const sent = { texts: [asked] };
      if (beams.value) sent.beams = Number(beams.value);
      const answer = await work(() => askWithAttention(ask, sent));
      if (answer === null) return;
      const [found] = answer.texts;
      written.textContent = found.text || t.nothing;
      figures.textContent = t.figures(percent(found.probability), found.tokens) + (found.ended ? "" : t.cutOff);
      looks.hidden = answer.attention === null;
      if (answer.attention) pictures.show({ ...answer.attention, from: answer.attention.target, to: answer.attention.source });
    }
  },
};

/** The text with its attention; without it for a text that is too long, or a model that has no cross-attention. */
async function askWithAttention(ask, sent) {
  try {
    return await ask("/rewrite", { ...sent, attention: true });
  } catch (error) {
    if (error.type !== "too_large" && error.type !== "unsupported") throw error;
    return ask("/rewrite", sent);
  }
}
