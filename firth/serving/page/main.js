// The frame: language, tabs, the model a panel asks, and one way of working, waiting and failing for all panels.

import { make, percent, withCode } from "./draw.js";
import { ask } from "./server.js";
import { LANGUAGES, examples, words } from "./texts.js";
import { classify } from "./panels/classify.js";
import { fill } from "./panels/fill.js";
import { attention } from "./panels/attention.js";
import { tag } from "./panels/tag.js";
import { runs } from "./panels/runs.js";
import { meaning } from "./panels/meaning.js";
import { compare } from "./panels/compare.js";
import { answer } from "./panels/answer.js";
import { rewrite } from "./panels/rewrite.js";
import { neighbours } from "./panels/neighbours.js";
import { search } from "./panels/search.js";

const PANELS = [fill, classify, attention, tag, runs, meaning, compare, answer, rewrite, neighbours, search];
const KEY = "firth-language";
const UNREADABLE = 0.05; // the share of unknown tokens above which a model hardly reads a text
const at = (id) => document.getElementById(id);
const chosen = {}; // panel -> model, if a person has chosen one
const kept = {}; // panel and language -> what was typed there

let language = firstLanguage();
let info = null;
let closing = new AbortController();

function firstLanguage() {
  const stored = recall();
  if (LANGUAGES.includes(stored)) return stored;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

function recall() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}

function remember() {
  try { localStorage.setItem(KEY, language); } catch { /* a browser that keeps nothing: the switch still works */ }
}

/** The panel of the address; without one, the first that a served model can answer. */
function current() {
  const named = PANELS.find((panel) => `#${panel.name}` === location.hash);
  return named ?? (info && PANELS.find(isAble)) ?? PANELS[0];
}

/** The panels as tabs: first those that a served model can do. */
function inOrder() {
  if (!info) return PANELS;
  return [...PANELS.filter(isAble), ...PANELS.filter((panel) => !isAble(panel))];
}

const isAble = (panel) => (panel.rank ? ranked(panel.rank).length > 0 : info.runs);

function drawFrame() {
  const t = words(language);
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  document.title = `firth · ${t[current().name].name}`;
  at("tagline").textContent = t.tagline;
  at("language").textContent = t.otherLanguage;
  at("docs").textContent = t.docs;
  at("served").textContent = info ? t.served(Object.keys(info.models).length, info.firth) : "";
  for (const part of ["title", "lede", "label", "open"]) at(`door-${part}`).textContent = t.door[part];
  at("tabs").setAttribute("aria-label", t.panels);
  const focused = at("tabs").contains(document.activeElement);
  at("tabs").replaceChildren(...inOrder().map((panel) => tab(panel, t)));
  at(`tab-${current().name}`).scrollIntoView({ block: "nearest", inline: "nearest" });
  if (focused) at(`tab-${current().name}`).focus();
}

function tab(panel, t) {
  const selected = panel === current();
  const unable = info !== null && !isAble(panel);
  const go = () => { location.hash = panel.name; };
  return make("button", {
    type: "button", role: "tab", id: `tab-${panel.name}`, "aria-selected": String(selected), "aria-controls": "panel",
    tabindex: selected ? "0" : "-1", "data-name": t[panel.name].name, on: { click: go },
    ...(unable ? { class: "unable", title: t[panel.name].cannot.replaceAll("`", "") } : {}),
  }, t[panel.name].name);
}

function walkTabs(event) {
  const panels = inOrder();
  const here = panels.indexOf(current());
  const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: -1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  location.hash = panels.at(next % panels.length).name; // drawn on hashchange
}

function draw() {
  closing.abort();
  closing = new AbortController();
  drawFrame();
  const panel = current();
  at("panel").setAttribute("aria-labelledby", `tab-${panel.name}`);
  if (info) drawPanel(panel, words(language), closing.signal);
}

function drawPanel(panel, t, signal) {
  const own = t[panel.name];
  const head = make("div", { class: "head" }, make("h1", {}, own.name), make("p", { class: "lede" }, own.lede));
  const able = panel.rank ? ranked(panel.rank) : [];
  if (!isAble(panel)) {
    at("panel").replaceChildren(head, make("p", { class: "cannot" }, withCode(own.cannot)));
    return;
  }
  const model = able.includes(chosen[panel.name]) ? chosen[panel.name] : able[0];
  const status = make("div", { class: "status", role: "status" });
  const body = make("div", { class: "body", id: "body" });
  const unread = make("p", { class: "unread", id: "unread", role: "status" });
  at("panel").replaceChildren(...[head, able.length > 1 ? picker(panel, able, model, t) : null, body, unread, status].filter(Boolean));
  const keep = (kept[`${panel.name} ${language}`] ??= {});
  const call = async (path, sent) => {
    const answer = await ask(path, sent && panel.rank ? { model, ...sent } : sent, { knock, signal });
    if (answer.unknown !== undefined) unread.textContent = answer.unknown > UNREADABLE ? t.unread(percent(answer.unknown)) : "";
    return answer;
  };
  panel.open(body, { t: { ...own, ...examples(panel.name, exampleLanguage(model)) }, all: t, ask: call, work: worker(body, status, { t, signal }), keep, signal, info: info.models[model], limits: info.limits });
}

/** The models a panel can ask: the fittest first, of equals those that read the page's language, then as they are served. */
function ranked(rank) {
  const found = Object.entries(info.models).map(([name, model]) => [name, Number(rank(model)), Number(reads(model))]);
  return found.filter(([, fit]) => fit > 0).sort((a, b) => b[1] - a[1] || b[2] - a[2]).map(([name]) => name);
}

const reads = (model) => model.languages.includes(language);

/** The language of a panel's examples: the page's, unless the model cannot read it. */
function exampleLanguage(name) {
  const model = info.models[name];
  return !model || reads(model) ? language : model.languages[0];
}

function picker(panel, able, model, t) {
  const choose = (event) => { chosen[panel.name] = event.target.value; draw(); at("model").focus(); };
  const choices = able.map((name) => make("option", { selected: name === model }, name));
  return make("label", { class: "picker" }, make("span", {}, t.model), make("select", { id: "model", on: { change: choose } }, choices));
}

/** Runs a job with its waiting and its failure shown; gives null where it failed or a later one has begun. */
function worker(body, status, { t, signal }) {
  let last = 0;
  return async (job) => {
    const mine = ++last;
    body.setAttribute("aria-busy", "true");
    try {
      const found = await job();
      if (mine !== last || signal.aborted) return null;
      status.replaceChildren();
      return found;
    } catch (error) {
      if (mine === last && !signal.aborted) status.replaceChildren(failure(error, t));
      return null;
    } finally {
      if (mine === last) body.removeAttribute("aria-busy");
    }
  };
}

function failure(error, t) {
  const lead = t.errors[error.type] ?? t.errors.internal;
  return make("p", { class: "wrong" }, make("strong", {}, lead), error.message ? make("span", {}, ` ${error.message}`) : null);
}

/** Asks the person for the token. */
function knock(wasWrong) {
  at("door-wrong").textContent = wasWrong ? words(language).door.wrong : "";
  at("token").value = "";
  at("door").showModal();
  return new Promise((resolve) => {
    at("door").addEventListener("close", () => resolve(at("token").value), { once: true });
  });
}

async function start() {
  const t = words(language);
  at("panel").replaceChildren(make("p", { class: "lede" }, t.opening));
  try {
    info = await ask("/info", undefined, { knock });
    draw();
  } catch (error) {
    const again = make("button", { type: "button", class: "main", on: { click: start } }, words(language).again);
    at("panel").replaceChildren(failure(error, words(language)), again);
  }
}

at("language").addEventListener("click", () => {
  language = language === "en" ? "zh" : "en";
  remember();
  draw();
});
at("tabs").addEventListener("keydown", walkTabs);
at("door").addEventListener("cancel", (event) => event.preventDefault());
window.addEventListener("hashchange", draw);
draw();
start();
