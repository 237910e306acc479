// Meaning: a word and sentences in; the word's places on a map, their nearest others, and its neighbours without context.

import { bar, characters, field, make, paused, shape } from "../draw.js";

const signed = (value) => value.toFixed(2).replace("-", "−");
const SIZE = 340, ROOM = 34, NEAREST = 3, BESIDE = 8;

export const meaning = {
  name: "meaning",
  rank: (model) => model.can.includes("meaning"),

  open(place, { t, ask, work, keep }) {
    const word = make("input", { id: "meaning-word", type: "text", spellcheck: "false", value: keep.word ?? t.exampleWord });
    const texts = make("textarea", { id: "meaning-texts", rows: "7", spellcheck: "false", value: keep.texts ?? t.example.join("\n") });
    const map = make("div", { class: "map", id: "map" });
    const places = make("ol", { class: "places", id: "places" });
    const near = make("p", { class: "rest", id: "near", "aria-live": "polite" }, t.nearRest);
    const alone = make("div", { id: "alone" });
    const soon = paused(run);
    for (const control of [word, texts]) {
      control.addEventListener("input", () => { [keep.word, keep.texts] = [word.value, texts.value]; soon(); });
    }
    place.append(
      field(t.word, word), field(t.texts, texts),
      make("div", { class: "pair" },
        make("section", {}, make("h2", {}, t.map), map, make("h3", {}, t.near), near),
        make("section", {}, places, make("h2", {}, t.alone), alone)),
    );
    run();

    async function run() {
      const lines = texts.value.split("\n").filter((line) => line.trim());
      if (!word.value.trim() || !lines.length) return;
      const answer = await work(() => ask("/meaning", { word: word.value.trim(), texts: lines }));
      if (answer === null) return;
      const point = (index) => show(answer, index);
      map.replaceChildren(drawMap(answer.occurrences, { point, name: t.map }));
      places.replaceChildren(...answer.occurrences.map((one, index) => line(one, characters(lines[one.text]), point, index)));
      near.textContent = t.nearRest;
      const beside = answer.neighbours.slice(0, BESIDE).map(({ token, similarity }) => bar({ name: token, share: Math.max(0, similarity), figure: similarity.toFixed(2) }));
      alone.replaceChildren(beside.length ? make("ol", { class: "bars" }, beside) : make("p", { class: "rest" }, t.noAlone));
    }

    function show(answer, index) {
      const order = answer.similarities[index].map((cosine, other) => [cosine, other]).filter(([, other]) => other !== index);
      const best = order.sort((a, b) => b[0] - a[0]).filter(([cosine], rank) => rank === 0 || (cosine > 0 && rank < NEAREST));
      const close = new Set(best.map(([, other]) => other));
      for (const part of [...map.querySelectorAll("[data-place]"), ...places.children]) {
        part.classList.toggle("on", Number(part.dataset.place) === index);
        part.classList.toggle("close", close.has(Number(part.dataset.place)));
      }
      near.textContent = `${index + 1} → ${best.map(([cosine, other]) => `${other + 1} (${signed(cosine)})`).join(" · ")}`;
    }
  },
};

function drawMap(occurrences, { point, name }) {
  const at = (value) => SIZE / 2 + value * (SIZE / 2 - ROOM);
  const axes = [
    shape("line", { x1: 0, x2: SIZE, y1: SIZE / 2, y2: SIZE / 2, class: "grid" }),
    shape("line", { x1: SIZE / 2, x2: SIZE / 2, y1: 0, y2: SIZE, class: "grid" }),
  ];
  const spots = occurrences.map(({ x, y }, index) => shape("g", {
    transform: `translate(${at(x).toFixed(1)} ${at(-y).toFixed(1)})`, class: "place", tabindex: "0", "data-place": index,
    on: { pointerenter: () => point(index), focus: () => point(index) },
  }, shape("circle", { r: 13 }), shape("text", { "text-anchor": "middle" }, String(index + 1))));
  return shape("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": name }, axes, spots);
}

function line({ start, end }, letters, point, index) {
  const cut = (from, to) => letters.slice(from, to).join("");
  const settings = { tabindex: "0", "data-place": index, on: { pointerenter: () => point(index), focus: () => point(index) } };
  return make("li", settings, cut(0, start), make("mark", {}, cut(start, end)), cut(end));
}
