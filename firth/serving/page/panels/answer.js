// Answer: a question and a passage in; the passage with the answer marked.

import { characters, field, make, paused, percent } from "../draw.js";

const task = (model) => Object.keys(model.tasks).find((name) => name.startsWith("answer"));

export const answer = {
  name: "answer",
  rank: (model) => task(model) !== undefined,

  open(place, { t, ask, work, keep, info }) {
    const question = make("input", { id: "question", type: "text", spellcheck: "false", value: keep.question ?? t.exampleQuestion });
    const passage = make("textarea", { id: "passage", rows: "5", spellcheck: "false", value: keep.passage ?? t.example });
    const found = make("p", { class: "found", id: "found", "aria-live": "polite" });
    const shown = make("p", { class: "tagged", id: "answered" });
    const soon = paused(run);
    for (const control of [question, passage]) {
      control.addEventListener("input", () => { [keep.question, keep.passage] = [question.value, passage.value]; soon(); });
    }
    place.append(field(t.passage, passage), field(t.question, question), found, shown);
    run();

    async function run() {
      const [asked, context] = [question.value, passage.value];
      if (!asked.trim() || !context.trim()) return;
      const reply = await work(() => ask("/predict", { task: task(info), inputs: [{ question: asked, context }] }));
      if (reply === null) return;
      const span = reply.predictions[0].spans[0];
      if (!span) {
        found.textContent = t.none;
        shown.textContent = context;
        return;
      }
      const letters = characters(context);
      const cut = (from, to) => letters.slice(from, to).join("");
      found.replaceChildren(make("strong", {}, cut(span.start, span.end)), make("span", {}, percent(span.probability)));
      shown.replaceChildren(cut(0, span.start), make("mark", { class: "span kind-0" }, cut(span.start, span.end)), cut(span.end));
    }
  },
};
