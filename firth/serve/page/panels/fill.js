// Fill: a text with gaps in, for each gap the likeliest tokens as bars; pressing one writes it into the text.

import { bar, field, make, paused, percent } from "../draw.js";

const MASK = "[MASK]";
const TOP = 8;

export const fill = {
  name: "fill",
  rank: (model) => model.can.includes("fill"),

  open(place, { t, ask, work, keep }) {
    const before = []; // texts to go back to
    const text = make("textarea", { id: "fill-text", rows: "3", spellcheck: "false", value: keep.text ?? t.example });
    const insert = make("button", { type: "button", on: { click: () => write(withMask(text)) } }, t.insert);
    const undo = make("button", { type: "button", disabled: true, on: { click: goBack } }, t.undo);
    const gaps = make("div", { class: "gaps", id: "gaps", "aria-live": "polite" });
    const soon = paused(run);
    text.addEventListener("input", () => { keep.text = text.value; soon(); });
    place.append(field(t.text, text), make("div", { class: "buttons" }, insert, undo), gaps);
    run();

    function write(value) {
      before.push(text.value);
      set(value);
    }

    function goBack() {
      set(before.pop());
    }

    function set(value) {
      text.value = keep.text = value;
      undo.disabled = before.length === 0;
      run();
    }

    async function run() {
      const asked = text.value;
      const answer = await work(async () => (asked.includes(MASK) ? ask("/fill", { text: asked, top: TOP }) : { masks: [] }));
      if (answer === null) return;
      const shown = answer.masks.map((mask, index) => gap(mask, index));
      gaps.replaceChildren(...(shown.length ? shown : [make("p", { class: "rest" }, t.noMask)]));
    }

    function gap(mask, index) {
      const most = mask.candidates[0]?.probability || 1;
      const rows = mask.candidates.map(({ token, probability, text: filled }) =>
        bar({ name: token, share: probability / most, figure: percent(probability), hint: t.use(token), press: () => write(filled) }));
      return make("section", {}, make("h2", {}, t.gap(index + 1)), make("ol", { class: "bars" }, rows));
    }
  },
};

/** The text with a mask where the cursor stands or instead of what is selected. */
function withMask(text) {
  return text.value.slice(0, text.selectionStart) + MASK + text.value.slice(text.selectionEnd);
}
