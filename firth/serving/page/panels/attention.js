// Attention: a text in; all heads as small pictures, the chosen one as lines and as a matrix.

import { field, make, paused } from "../draw.js";
import { headPictures } from "../heads.js";

export const attention = {
  name: "attention",
  rank: (model) => model.can.includes("attention"),

  open(place, { t, ask, work, keep }) {
    const text = make("input", { id: "attention-text", type: "text", spellcheck: "false", value: keep.text ?? t.example });
    const pictures = headPictures({ t, keep, saysId: "attention-says" });
    const soon = paused(run);
    text.addEventListener("input", () => { keep.text = text.value; soon(); });
    place.append(field(t.text, text), ...pictures.parts);
    run();

    async function run() {
      const asked = text.value.trim();
      if (!asked) return;
      const answer = await work(() => ask("/attention", { text: asked }));
      if (answer !== null) pictures.show({ ...answer, from: answer.tokens, to: answer.tokens });
    }
  },
};
