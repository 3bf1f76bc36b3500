// Which curves are drawn, from which figures of the history.

import { by, el } from "./dom.js";
import { draw } from "./charts.js";
import { read } from "./service.js";
import { byteUnit, say } from "./words.js";

const RANGES = [900, 3600, 86400, 604800, 7776000];
// Each asks the history no oftener than its points can change.
const EVERY_S = { 900: 10, 3600: 10, 86400: 60, 604800: 300, 7776000: 600 };
const FIGURES = ["decode_tokens_per_s", "total_tokens_per_s", "ttft_s", "generating", "waiting", "memory_used_bytes",
  "resident_bytes", "other_cpus_busy", "card_used_bytes", "card_power_w", "card_temperature_c"];

let range = 900;
let stretch = null;
let wanted = true;
let askedAt = 0;
let trouble = null;

export function setUp(redraw) {
  by("ranges").append(...RANGES.map((seconds) => {
    const input = el("input", { type: "radio", name: "range", value: seconds, checked: seconds === range });
    input.addEventListener("change", () => {
      range = seconds;
      wanted = true;
      redraw();
    });
    return el("label", null, input, el("span", { "data-say": `range_${seconds}` }));
  }));
}

// Reads the history when it is due; true when there is something new to draw.
export async function refresh() {
  if (!wanted && Date.now() - askedAt < EVERY_S[range] * 1000) return false;
  wanted = false;
  askedAt = Date.now();
  const until = Math.floor(Date.now() / 1000);
  const asked = new URLSearchParams([...FIGURES.map((figure) => ["figure", figure]), ["since", until - range], ["points", 300]]);
  try {
    const found = await read(`workhorse/history?${asked}`);
    stretch = { since: found.since_unix_s, until: found.until_unix_s, step: found.step_s, series: found.series };
    trouble = null;
  } catch (error) {
    if (error.status === undefined) throw error;
    trouble = error.message;
  }
  return true;
}

export function show(state, about) {
  const none = by("curves_none");
  const empty = !stretch?.series.length;
  none.hidden = !trouble && !empty;
  none.textContent = trouble ? say("curves_none", trouble) : say("curves_soon");
  const charts = empty || trouble ? [] : chartsOf(state, about).filter((chart) => chart.series.length);
  const host = by("charts");
  while (host.children.length > charts.length) host.lastElementChild.remove();
  while (host.children.length < charts.length) host.append(el("figure", { class: "chart" }));
  charts.forEach((chart, i) => {
    const figure = host.children[i];
    if (!figure.querySelector(".readout")) draw(figure, chart, stretch); // a reader points at it
  });
}

function lines(figure, scale = 1, name = (subject) => subject) {
  return stretch.series.filter((one) => one.figure === figure).map((one) => ({
    name: name(one.subject),
    points: one.points.map(([at, low, mean, high]) => [at, low / scale, mean / scale, high / scale]),
  }));
}

const most = (series) => Math.max(0, ...series.flatMap((one) => one.points.map((p) => p[3])));

function chartsOf(state, about) {
  const one = state.engines.length === 1 ? state.engines[0] : null;
  const plan = one && about?.plans[0];
  const events = state.events.filter((event) => event.state !== "ready").map((event) => event.at_unix_s);
  const chart = (title, unit, series, levels = [], more = {}) => ({ title, unit, series, levels, events, ...more });
  const gpu = (index) => `GPU ${index}`;
  const wait = lines("ttft_s");
  const [second, secondName] = most(wait) < 1 ? [0.001, "ms"] : [1, "s"];
  const memoryMost = state.reading?.memory_total_bytes || most(lines("memory_used_bytes"));
  const [byte, byteName] = byteUnit(memoryMost || 1);
  const cardsHold = Math.max(0, ...(state.reading?.cards || []).map((card) => card.total_bytes || 0));
  const [cardByte, cardByteName] = byteUnit(cardsHold || most(lines("card_used_bytes")) || 1);
  const caps = new Set((state.reading?.cards || []).map((card) => card.power_limit_w));
  return [
    chart(say("one_stream"), "tok/s", lines("decode_tokens_per_s"), [
      { name: say("measured"), value: one?.measured?.decode_tokens_per_s },
      { name: say("ceiling"), value: plan?.ceiling_tokens_per_s?.value }]),
    chart(say("all_streams"), "tok/s", lines("total_tokens_per_s"), [], { least_top: 1 }),
    chart(say("ttft"), secondName, lines("ttft_s", second)),
    chart(say("queue"), say("requests").toLowerCase(), [
      ...lines("generating", 1, (name) => (one ? say("busy") : `${name} ${say("busy")}`)),
      ...lines("waiting", 1, (name) => (one ? say("queued") : `${name} ${say("queued")}`))],
    [{ name: say("slots").toLowerCase(), value: one?.slots }], { least_top: 1 }),
    chart(say("memory"), byteName, [...lines("memory_used_bytes", byte, () => say("used")), ...lines("resident_bytes", byte, (name) => (one ? say("engine") : name))],
      [{ name: say("total"), value: state.reading?.memory_total_bytes ? state.reading.memory_total_bytes / byte : null }]),
    chart(say("others_title"), say("cpus"), lines("other_cpus_busy"), [], { least_top: 1 }),
    chart(say("vram"), cardByteName, lines("card_used_bytes", cardByte, gpu), [{ name: say("total"), value: cardsHold ? cardsHold / cardByte : null }]),
    chart(say("power"), "W", lines("card_power_w", 1, gpu), [{ name: say("power_cap"), value: caps.size === 1 ? [...caps][0] : null }]),
    chart(say("heat"), "°C", lines("card_temperature_c", 1, gpu), [], { from_zero: false }),
  ];
}
