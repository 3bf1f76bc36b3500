// What the service does now: alarms first, then why an engine is not ready, then the instruments.

import { by, el, put, svg } from "./dom.js";
import { byteUnit, bytes, clock, count, digits, knows, language, say, seconds, share, words } from "./words.js";

const SERIOUS = ["blocker", "cause", "warning"];

export function alarms(state) {
  const on = state.alarms.filter((alarm) => alarm.over_unix_s === null);
  const over = state.alarms.filter((alarm) => alarm.over_unix_s !== null);
  by("alarms").hidden = !state.alarms.length;
  put(by("alarms_on"), [language, on], () => on.map(alarmCard));
  const past = by("alarms_over");
  past.hidden = !over.length;
  past.firstElementChild.textContent = say("alarms_over", over.length);
  put(past.lastElementChild, [language, over], () => over.map(alarmCard));
  return on.filter((alarm) => SERIOUS.includes(alarm.finding.level)).length;
}

function alarmCard(alarm) {
  const { finding, since_unix_s: since, over_unix_s: over } = alarm;
  const when = over === null ? say("since", clock(since)) : say("from_to", clock(since), clock(over));
  const rows = [["why", words(finding.why)], ["remedy", words(finding.remedy)], ["check", words(finding.check)]];
  return el("article", { class: `alarm ${finding.level}${over === null ? "" : " over"}` },
    el("span", { class: "when" }, alarm.subject ? `${alarm.subject} · ${when}` : when),
    el("strong", null, words(finding.seen)),
    el("dl", null,
      rows.filter(([, text]) => text).map(([label, text]) => [el("dt", null, say(label)), el("dd", null, text)]),
      finding.command && [el("dt", null, say("command")), el("dd", { class: "command" }, el("code", null, finding.command), copyButton(finding.command))],
      finding.evidence?.length ? [el("dt", null, say("evidence")), el("dd", null, finding.evidence.join(" · "))] : null,
      finding.source ? [el("dt", null, say("source")), el("dd", null, finding.source)] : null));
}

function copyButton(text) {
  const button = el("button", { type: "button" }, say("copy"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = say("copied");
    } catch { /* without a secure context there is no clipboard: the text can be selected */ }
  });
  return button;
}

export const stateWord = (state) => (knows(state) ? say(state) : state);

const lost = (state) => state === "given_up" || state === "stopped" || state === "out_of_service";

// An engine among several of one model is told by where it runs.
export const engineName = (engine) => (engine.on ? `${engine.model_name} (${engine.on})` : engine.model_name);

export function head(state) {
  const worst = state.engines.find((engine) => engine.state === "given_up" || engine.state === "out_of_service") || state.engines.find((engine) => engine.state !== "ready");
  const shown = worst ? worst.state : state.state;
  const pill = by("state");
  pill.textContent = stateWord(shown);
  pill.className = `pill ${shown === "ready" ? "ready" : lost(shown) ? "bad" : "wait"}`;
  by("models").textContent = [...new Set(state.engines.map((engine) => engine.model_name))].join(", ");
  const restarts = state.engines.reduce((sum, engine) => sum + engine.restarts, 0);
  const parts = [say("uptime", seconds(state.at_unix_s - state.since_unix_s))];
  if (restarts) parts.push(restarts === 1 ? say("restarts_one") : say("restarts", restarts));
  by("uptime").textContent = parts.join(" · ");
  by("version").textContent = say("version", state.version);
}

export function conditions(state) {
  const waiting = state.engines.filter((engine) => engine.state !== "ready");
  const same = waiting.map((engine) => [engineName(engine), engine.state, engine.reason]);
  put(by("conditions"), [language, same, state.engines.length], () => {
    if (!state.engines.length) return el("p", { class: "notice" }, say("say_none"));
    return waiting.map((engine) => {
      const key = `say_${engine.state}`;
      const what = knows(key) ? say(key, engineName(engine)) : say("say_other", engineName(engine), engine.state);
      const bad = lost(engine.state);
      return el("div", { class: `notice ${bad ? "bad" : ""}` }, el("strong", null, what), engine.reason && el("div", null, words(engine.reason)));
    });
  });
}

export function instruments(state, about) {
  const { reading } = state;
  const cards = state.engines.flatMap((engine, i) => engineInstruments(engine, about?.plans[i], state.engines.length > 1));
  if (reading) cards.push(memoryInstrument(reading), ...reading.cards.map(cardInstrument));
  put(by("instruments"), [language, state.engines, about && about.plans.length, reading], () => cards);
}

const tile = (title, ...rest) => el("div", { class: "instrument" }, el("h3", null, title), rest);

const big = (value, unit) => el("p", { class: "big" }, value, " ", el("small", null, unit));

const pair = (label, value) => el("span", null, `${label} `, el("b", null, value));

function engineInstruments(engine, plan, several) {
  const now = engine.now;
  const name = (title) => (several ? `${engineName(engine)}: ${title}` : title);
  const speed = now?.decode_tokens_per_s ?? null;
  const found = [el("div", { class: "instrument wide" }, el("h3", null, name(say("one_stream"))),
    big(digits(speed), "tok/s"), speedGauge(speed, engine.measured, plan), speedLegend(speed, engine.measured, plan),
    speed === null && engine.state === "ready" && el("p", null, say("idle")))];
  found.push(tile(name(say("all_streams")), big(digits(now?.total_tokens_per_s ?? null), "tok/s"),
    el("p", null, pair(say("prefill"), `${digits(now?.prefill_tokens_per_s ?? engine.measured?.prefill_tokens_per_s ?? null)} tok/s`))));
  const ttft = seconds(now?.ttft_s ?? null).split(" ");
  found.push(tile(name(say("ttft")), big(ttft[0], ttft.slice(1).join(" ")),
    el("p", null, engine.measured?.ttft_s ? pair(say("measured"), seconds(engine.measured.ttft_s)) : say("ttft_latest"))));
  const slots = engine.slots ?? now?.slots ?? null;
  if (slots !== null) found.push(slotInstrument(name(say("slots")), slots, now));
  return found;
}

function slotInstrument(title, slots, now) {
  const busy = now?.generating ?? 0;
  const shown = Math.min(slots, 32);
  return tile(title, big(busy, `/ ${slots} ${say("busy")}`),
    el("div", { class: "slots", "aria-hidden": "true" }, Array.from({ length: shown }, (_, i) => el("i", { class: i < busy ? "busy" : null }))),
    el("p", null, say("waiting", now?.waiting ?? 0)));
}

// From zero to a little beyond the ceiling: the bar is now, the band what was promised, the tick
// what was measured here.
function speedGauge(speed, measured, plan) {
  const promise = plan?.decode_tokens_per_s;
  const ceiling = plan?.ceiling_tokens_per_s?.value ?? null;
  const most = Math.max(ceiling ?? 0, promise?.high ?? 0, speed ?? 0, measured?.decode_tokens_per_s ?? 0);
  if (!most || (!promise && ceiling === null && !measured)) return null; // nothing to hold it against
  const at = (value) => (value / most) * 98;
  const picture = svg("svg", { class: "gauge", viewBox: "0 0 100 8", height: 18, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", x: 0, y: 1, width: ceiling === null ? 98 : at(ceiling), height: 6 }));
  if (promise) picture.append(svg("rect", { class: "promise", x: at(promise.low), y: 1, width: Math.max(0.4, at(promise.high) - at(promise.low)), height: 6 }));
  if (speed !== null) picture.append(svg("rect", { class: "fill", x: 0, y: 2.6, width: at(speed), height: 2.8 }));
  if (measured) picture.append(svg("line", { class: "tick", x1: at(measured.decode_tokens_per_s), x2: at(measured.decode_tokens_per_s), y1: 0, y2: 8, "vector-effect": "non-scaling-stroke" }));
  return picture;
}

function speedLegend(speed, measured, plan) {
  const promise = plan?.decode_tokens_per_s;
  const ceiling = plan?.ceiling_tokens_per_s?.value;
  const reached = speed ?? measured?.decode_tokens_per_s ?? null;
  return el("div", { class: "legend" },
    measured && pair(say("measured"), digits(measured.decode_tokens_per_s)),
    promise && pair(say("forecast"), `${digits(promise.value)} (${digits(promise.low)}–${digits(promise.high)})`),
    ceiling && pair(say("ceiling"), digits(ceiling)),
    ceiling && reached !== null && el("span", null, el("b", null, say("share", share(reached / ceiling)))));
}

function bar(part, hot) {
  if (part === null) return null;
  return svg("svg", { class: "gauge", viewBox: "0 0 100 8", height: 12, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", x: 0, y: 1, width: 100, height: 6 }),
    svg("rect", { class: hot ? "fill hot" : "fill", x: 0, y: 1, width: Math.max(0, Math.min(1, part)) * 100, height: 6 }));
}

const over = (part, whole) => (part === null || !whole ? null : part / whole);

// `19.2` and `/ 32 GiB`: both in the unit of the whole.
function amount(part, whole) {
  if (part === null || !whole) return [bytes(part), whole ? `/ ${bytes(whole)}` : ""];
  const [unit, name] = byteUnit(whole);
  return [digits(part / unit), `/ ${digits(whole / unit)} ${name}`];
}

function memoryInstrument(reading) {
  const { memory_total_bytes: total, memory_available_bytes: available } = reading;
  const used = total === null || available === null ? null : total - available;
  const part = over(used, total);
  return tile(say("memory"), big(...amount(used, total)), bar(part, part > 0.95),
    reading.swap_used_bytes ? el("p", null, say("swap", bytes(reading.swap_used_bytes))) : null,
    reading.other_cpus_busy === null ? null : el("p", null, say("others", digits(reading.other_cpus_busy))));
}

function cardInstrument(card) {
  const part = over(card.used_bytes, card.total_bytes);
  const drawn = over(card.power_w, card.power_limit_w);
  const link = card.link_generation && card.link_width ? say("link", card.link_generation, card.link_width) : null;
  const now = [card.power_w === null ? null : `${count(Math.round(card.power_w))}${card.power_limit_w ? ` / ${count(Math.round(card.power_limit_w))}` : ""} W`,
    card.temperature_c === null ? null : `${digits(card.temperature_c)} °C`, card.sm_clock_mhz ? `${count(card.sm_clock_mhz)} MHz` : null];
  return el("div", { class: "instrument card" }, el("h3", null, `GPU ${card.index} · ${card.name}`), big(...amount(card.used_bytes, card.total_bytes)), bar(part, part > 0.95),
    el("p", null, [link, card.busy_share === null ? null : `${share(card.busy_share)} ${say("card_busy")}`].filter(Boolean).join(" · ")),
    bar(drawn, false),
    el("p", null, now.filter(Boolean).join(" · ")),
    card.throttled_by?.length ? el("p", { class: "warn" }, say("throttled", card.throttled_by.join(", "))) : null,
    card.foreign_processes?.length ? el("p", { class: "warn" }, say("foreign", card.foreign_processes.join(", "))) : null);
}
