// Fill: a text with gaps in, for each gap the likeliest tokens as bars; pressing one writes it into the text.

import { bar, field, make, paused, percent, swap } from "../draw.js";

const WRITTEN = "[MASK]"; // in the page's own sentences; a model may have another
const TOP = 8;

export const fill = {
  name: "fill",
  rank: (model) => model.can.includes("fill"),

  open(place, { t, ask, work, keep, info }) {
    const mask = info.mask;
    const spelled = (sentence) => sentence.replaceAll(WRITTEN, mask);
    const before = []; // texts to go back to
    const text = make("textarea", { id: "fill-text", rows: "3", spellcheck: "false", value: keep.text ?? spelled(t.example) });
    const insert = make("button", { type: "button", on: { click: () => write(withMask(text, mask)) } }, spelled(t.insert));
    const undo = make("button", { type: "button", disabled: true, on: { click: goBack } }, t.undo);
    const gaps = make("div", { class: "gaps", id: "gaps", "aria-live": "polite" });
    const soon = paused(run);
    text.addEventListener("input", () => { keep.text = text.value; soon(); });
    place.append(field(spelled(t.text), text), make("div", { class: "buttons" }, insert, undo), gaps);
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
      const answer = await work(async () => (asked.includes(mask) ? ask("/fill", { text: asked, top: TOP }) : { masks: [] }));
      if (answer === null) return;
      const shown = answer.masks.map(gap);
      swap(gaps, shown.length ? shown : [make("p", { class: "rest" }, spelled(t.noMask))], text);
    }

    function gap({ candidates }, index) {
      const most = candidates[0]?.probability || 1;
      const rows = candidates.map(({ token, probability, text: filled }) =>
        bar({ name: token, share: probability / most, figure: percent(probability), hint: t.use(token), press: () => write(filled) }));
      return make("section", {}, make("h2", {}, t.gap(index + 1)), make("ol", { class: "bars" }, rows));
    }
  },
};

/** The text with a mask where the cursor stands or instead of what is selected. */
function withMask(text, mask) {
  return text.value.slice(0, text.selectionStart) + mask + text.value.slice(text.selectionEnd);
}
