// Classify: a text (or a pair) in; the labels as bars, and the words coloured by what they add to the first label.

import { bar, characters, field, make, paused, percent } from "../draw.js";

const TOP = 12;
const task = (model) => Object.keys(model.tasks).find((name) => name.startsWith("classify"));

export const classify = {
  name: "classify",
  rank: (model) => task(model) !== undefined,

  open(place, { t, ask, work, keep, info }) {
    const name = task(info);
    const text = make("textarea", { id: "classify-text", rows: "3", spellcheck: "false", value: keep.text ?? t.example });
    const second = make("textarea", { id: "classify-second", rows: "2", spellcheck: "false", value: keep.second ?? "" });
    const method = make("select", { id: "classify-by" }, ["gradients", "occlusion"].map((by) => make("option", { value: by, selected: by === keep.by }, t[by])));
    const labels = make("ol", { class: "bars", id: "labels", "aria-live": "polite" });
    const why = make("section", { id: "why" });
    const soon = paused(run);
    for (const control of [text, second]) {
      control.addEventListener("input", () => { [keep.text, keep.second] = [text.value, second.value]; soon(); });
    }
    method.addEventListener("change", () => { keep.by = method.value; run(); });
    place.append(field(t.text, text), field(t.second, second), labels, why);
    run();

    async function run() {
      if (!text.value.trim()) return;
      const input = second.value.trim() ? [text.value, second.value] : text.value;
      const answer = await work(() => ask("/predict", { task: name, inputs: [input] }));
      if (answer === null) return;
      labels.replaceChildren(...rows(answer.predictions[0]));
      if (!info.can.includes("explain")) return;
      const found = await work(() => ask("/explain", { task: name, input, by: method.value }));
      if (found !== null) why.replaceChildren(...explained(found, typeof input === "string" ? [input] : input));
    }

    function rows(prediction) {
      const all = Object.entries(prediction.probabilities).sort((a, b) => b[1] - a[1]);
      if (!all.length) return [make("li", { class: "found" }, make("strong", {}, prediction.label.toFixed(3)))];
      return all.slice(0, TOP).map(([label, share]) => bar({ name: label, share, figure: percent(share) }));
    }

    function explained(found, texts) {
      const says = make("p", { class: "rest", id: "why-says" }, t.rest);
      const most = Math.max(...found.words.map((word) => Math.abs(word.weight)), 1e-9);
      const lines = texts.map((one, number) => make("p", { class: "tagged weighed" }, marked(one, found.words.filter((word) => word.text === number), most, says)));
      const heading = make("h2", {}, found.label ? t.why(found.label) : t.whyNumber);
      return [heading, make("label", { class: "picker" }, make("span", {}, t.method), method), ...lines, says];
    }

    function marked(one, words, most, says) {
      const letters = characters(one);
      const parts = [];
      let done = 0;
      for (const word of words) {
        parts.push(letters.slice(done, word.start).join(""), mark(word, most, says));
        done = word.end;
      }
      return [...parts, letters.slice(done).join("")];
    }

    function mark(word, most, says) {
      const written = `${word.weight < 0 ? "\u2212" : "+"}${Math.abs(word.weight).toFixed(3)}`;
      const tell = () => { says.textContent = t.detail(word.word, written); };
      const share = (Math.abs(word.weight) / most).toFixed(3);
      const kind = word.weight < 0 ? `against${share > 0.2 ? " strong" : ""}` : "speaks-for";
      return make("mark", { class: `weight ${kind}`, tabindex: "0", "data-weight": written, style: { "--share": share }, on: { pointerenter: tell, focus: tell } }, word.word);
    }
  },
};
