// The page: asks for the state every two seconds while somebody looks, and shows it.

import { by } from "./dom.js";
import { NeedsKey, hasKey, read, setKey } from "./service.js";
import { clock, language, say, setLanguage } from "./words.js";
import * as chat from "./chat.js";
import * as curves from "./curves.js";
import * as panels from "./panels.js";
import * as plan from "./plan.js";

const EVERY_MS = 2000;
const PATIENT_MS = 10000; // between tries while the gateway does not answer

let state = null;
let about = null;
let heardAt = Date.now() / 1000;
let timer = null;
let wantsKey = false;
let looking = false;

function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-say]")) node.textContent = say(node.dataset.say);
  const other = by("language");
  other.textContent = language === "zh" ? "English" : "中文";
  other.lang = language === "zh" ? "en" : "zh";
}

function show() {
  if (!state) return;
  by("service").hidden = false;
  const serious = panels.alarms(state);
  const name = state.engines[0]?.model_name;
  document.title = `${serious ? `(${serious}) ` : ""}workhorse${name ? ` · ${name}` : ""}`;
  panels.head(state);
  panels.conditions(state);
  panels.instruments(state, about);
  plan.plans(state, about);
  plan.machine(about);
  plan.usage(state);
  plan.templates(state);
  plan.events(state);
  chat.show(state);
  curves.show(state, about);
}

async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  let pause = EVERY_MS;
  try {
    const known = state && about ? `?known=${encodeURIComponent(state.revision)}` : "";
    state = await read(`workhorse/state${known}`);
    about = state.about ?? about;
    heardAt = Date.now() / 1000;
    keyAccepted();
    await curves.refresh();
    by("lost").hidden = true;
    show();
  } catch (error) {
    if (error instanceof NeedsKey) {
      askForKey(error);
      return;
    }
    pause = PATIENT_MS;
    by("lost").textContent = error.status === undefined ? say("lost", clock(heardAt)) : error.message;
    by("lost").hidden = false;
    by("state").textContent = "";
    by("state").className = "";
  } finally {
    looking = false;
  }
  // Nobody looks at a hidden page; it looks again when it is shown.
  if (!document.hidden) timer = setTimeout(look, pause);
}

function askForKey() {
  const wrong = hasKey();
  setKey(null);
  wantsKey = true;
  by("key").hidden = false;
  by("key_why").textContent = wrong ? say("key_wrong") : "";
  by("service").hidden = true;
  by("forget").hidden = true;
  by("key_field").value = "";
  by("key_field").focus();
}

function keyAccepted() {
  if (wantsKey) {
    wantsKey = false;
    by("key").hidden = true;
    by("main").focus();
  }
  by("forget").hidden = !hasKey();
  by("metrics").hidden = hasKey(); // a link sends no key
}

by("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(by("key_field").value.trim());
  look();
});
by("forget").addEventListener("click", () => {
  setKey(null);
  location.reload();
});
by("language").addEventListener("click", () => {
  setLanguage(language === "zh" ? "en" : "zh");
  translate();
  show();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !wantsKey) look();
});
addEventListener("resize", () => requestAnimationFrame(show));

curves.setUp(look);
chat.setUp(askForKey);
translate();
look();
