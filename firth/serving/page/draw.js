// Makers of elements. Whatever a user or a model wrote becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function dress(element, settings, children) {
  for (const [name, value] of Object.entries(settings)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const make = (tag, settings = {}, ...children) => dress(document.createElement(tag), settings, children);

export const shape = (tag, settings = {}, ...children) =>
  dress(document.createElementNS(SVG, tag), settings, children);

/** The parts of a text; what stands between backticks is code. */
export const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));

export const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** A row with a name, a bar and a figure: a button where it can be pressed. */
export function bar({ name, share, figure, press, hint }) {
  const parts = [
    make("span", { class: "bar-name" }, name),
    make("span", { class: "bar-track" }, make("span", { class: "bar-fill", style: { width: `${Math.max(share, 0.004) * 100}%` } })),
    make("span", { class: "bar-figure" }, figure),
  ];
  return make("li", {}, press ? make("button", { class: "bar", type: "button", title: hint, on: { click: press } }, parts) : make("div", { class: "bar" }, parts));
}

/** New children for a place; who was in it with the keyboard stays in it, or goes on at `otherwise`. */
export function swap(place, children, otherwise = null) {
  const held = place.contains(document.activeElement);
  place.replaceChildren(...children);
  if (held) (place.querySelector("button, [tabindex='0']") ?? otherwise)?.focus();
}

/** The characters of a text as the server counts them. */
export const characters = (text) => Array.from(text);

/** A field under its name. */
export const field = (name, control) => make("label", { class: "field" }, make("span", {}, name), control);

/** Calls `act` when the typing pauses. */
export function paused(act, wait = 350) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}
