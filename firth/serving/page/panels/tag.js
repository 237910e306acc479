// Tag: a text in; its spans marked in place, each with its label, or words set apart where the labels have no names.

import { characters, field, make, paused, percent } from "../draw.js";

const COLOURS = 8;

const task = (model) => Object.keys(model.tasks).find((name) => name.startsWith("tag"));

export const tag = {
  name: "tag",
  rank: (model) => task(model) !== undefined,

  open(place, { t, ask, work, keep, info }) {
    const name = task(info);
    const kinds = labels(info.tasks[name].labels);
    const kept = kinds.length ? "text" : "words";
    const text = make("textarea", { id: "tag-text", rows: "3", spellcheck: "false", value: keep[kept] ?? (kinds.length ? t.example : t.exampleWords) });
    const shown = make("p", { class: "tagged", id: "tagged" });
    const legend = make("ul", { class: "legend", id: "legend" });
    const says = make("p", { class: "rest", id: "tag-says", "aria-live": "polite" }, t.rest);
    const soon = paused(run);
    text.addEventListener("input", () => { keep[kept] = text.value; soon(); });
    place.append(field(t.text, text), shown, says, legend);
    run();

    async function run() {
      const asked = text.value;
      if (!asked.trim()) return shown.replaceChildren();
      const answer = await work(() => ask("/predict", { task: name, inputs: [asked] }));
      if (answer === null) return;
      const spans = answer.predictions[0].spans;
      shown.replaceChildren(...marked(characters(asked), spans));
      legend.replaceChildren(...kinds.map((kind, index) => entry(kind, index, spans)));
      says.textContent = spans.length ? t.rest : t.none;
    }

    function marked(letters, spans) {
      const parts = [];
      let done = 0;
      spans.forEach((span, index) => {
        parts.push(letters.slice(done, span.start).join(""), mark(span, letters.slice(span.start, span.end).join(""), index));
        done = span.end;
      });
      return [...parts, letters.slice(done).join("")];
    }

    function mark(span, inside, index) {
      const tell = () => { says.textContent = t.detail(inside, span.label || t.word, percent(span.probability)); };
      const colour = span.label ? `span kind-${kinds.indexOf(span.label) % COLOURS}` : `span word${index % 2 ? " odd" : ""}`;
      const label = span.label ? make("small", {}, span.label) : null;
      return make("mark", { class: colour, tabindex: "0", on: { pointerenter: tell, focus: tell } }, inside, label);
    }

    function entry(kind, index, spans) {
      const count = spans.filter((span) => span.label === kind).length;
      return make("li", { class: `kind-${index % COLOURS}` }, make("span", { class: "swatch" }), `${kind} ${count}`);
    }
  },
};

/** The kinds of spans among labels such as B-PER, I-PER and O; none for words cut by B, M, E and S. */
function labels(of) {
  const all = Object.values(of).flat().filter((label) => label.includes("-")).map((label) => label.slice(label.indexOf("-") + 1));
  return [...new Set(all)].sort();
}
