// What runs and why, the machine, who used how much, what happened.

import { by, el, put, svg, table } from "./dom.js";
import { UNKNOWN, bytes, clock, compact, count, digits, hours, knows, language, say, seconds, share, words } from "./words.js";
import { engineName, stateWord } from "./panels.js";

export function plans(state, about) {
  if (!about) return;
  const measured = state.engines.map((engine) => engine.measured);
  put(by("plans"), [language, state.revision, measured, state.engines.map((e) => e.state)], () =>
    about.plans.map((plan, i) => el("div", { class: "plan" }, plan ? onePlan(plan, measured[i], state.engines[i])
      : el("p", { class: "dim" }, say("plan_none", stateWord(state.engines[i]?.state ?? "planning"))))));
}

function onePlan(plan, measured, engine) {
  return [
    el("p", null, say(plan.slots === 1 ? "plan_summary_one" : "plan_summary", engine ? engineName(engine) : plan.model_name, plan.engine, plan.slots, count(plan.context_tokens))),
    el("h3", null, say("speed")), speeds(plan, measured),
    el("h3", null, say("memory_budget")), plan.devices.map(budget),
    plan.settings.length ? el("div", null, el("h3", null, say("settings")), table([[say("setting")], [say("value")], [say("because")]],
      plan.settings.map((one) => [words(one.label), el("span", { class: "value" }, one.value), words(one.because)]), "stack")) : null,
    plan.rejected.length ? el("details", null, el("summary", null, say("not_taken", plan.rejected.length)),
      table([[say("option")], [say("because")]], plan.rejected.map((one) => [one.option, words(one.because)]), "stack")) : null,
    plan.findings.length ? el("details", null, el("summary", null, `${say("findings")} (${plan.findings.length})`),
      el("ul", null, plan.findings.map((one) => el("li", null, el("b", null, words(one.seen)), " ", words(one.remedy))))) : null,
  ];
}

function speeds(plan, measured) {
  const range = (figure, show) => (figure.low === figure.high ? show(figure.value) : `${show(figure.value)} (${show(figure.low)}–${show(figure.high)})`);
  const rate = (value) => digits(value);
  const from = (figure) => `${words(figure.basis)}${say("colon")}${words(figure.source)}`;
  const rows = [];
  const add = (label, figure, unit, show = rate) => figure && rows.push([label, `${range(figure, show)}${unit}`, from(figure)]);
  add(say("forecast_of", say("decode")), plan.decode_tokens_per_s, " tok/s");
  if (measured) {
    const decode = { value: measured.decode_tokens_per_s, low: measured.low_tokens_per_s, high: measured.high_tokens_per_s };
    const by_protocol = say("measured_by", clock(measured.at_unix_s));
    rows.push([say("measured_of", say("decode")), `${range(decode, rate)} tok/s`, by_protocol]);
    if (measured.prefill_tokens_per_s) rows.push([say("measured_of", say("prefill")), `${digits(measured.prefill_tokens_per_s)} tok/s`, by_protocol]);
  }
  add(say("ceiling_long"), plan.ceiling_tokens_per_s, " tok/s");
  add(say("forecast_of", say("prefill")), plan.prefill_tokens_per_s, " tok/s");
  add(say("load"), plan.load_s, "", seconds);
  return table([[say("figure")], [say("value")], [say("from")]], rows.map(([a, b, c]) => [a, el("span", { class: "value figure" }, b), c]), "stack");
}

function budget(device) {
  const whole = device.holds_bytes ?? device.planned_bytes;
  const largest = device.items.slice(0, 4);
  const rest = device.items.slice(4).reduce((sum, item) => sum + item.n_bytes, 0);
  const parts = [...largest.map((item) => [words(item.label), item.n_bytes]), ...(rest ? [["…", rest]] : [])];
  let at = 0;
  const picture = svg("svg", { class: "gauge", viewBox: "0 0 100 8", height: 16, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", x: 0, y: 1, width: 100, height: 6 }),
    parts.map(([, size], i) => {
      const width = (size / whole) * 100;
      const part = svg("rect", { class: `p${i}`, x: at, y: 1, width: Math.max(0.15, width), height: 6 });
      at += width;
      return part;
    }));
  const total = device.holds_bytes === null ? say("budget", bytes(device.planned_bytes)) : say("budget_of", bytes(device.planned_bytes), bytes(device.holds_bytes));
  return el("div", { class: "budget" },
    el("div", { class: "name" }, el("b", null, words(device.name)), el("span", null, total)), picture,
    el("div", { class: "parts" }, parts.map(([label, size], i) => el("span", { class: `p${i}` }, `${label} ${bytes(size)}`))),
    el("details", null, el("summary", null, say("budget_items")),
      table([[say("item")], [say("size"), "n"], [say("from")]], device.items.map((item) => [words(item.label), bytes(item.n_bytes), `${words(item.basis)}${say("colon")}${words(item.source)}`]), "stack")));
}

export function machine(about) {
  const facts = about?.machine ?? [];
  by("machine").hidden = !facts.length;
  put(by("facts"), [language, facts], () => facts.map((fact) => [el("dt", null, words(fact.label)), el("dd", null, words(fact.value))]));
}

export function usage(state) {
  const used = state.usage;
  by("usage").hidden = !used?.keys.length;
  put(by("usage_rows"), [language, used], () => {
    if (!used) return [];
    const rows = used.keys.map((key) => [key.name || say("nobody"), ...[key.requests, key.prompt_tokens, key.cached_tokens, key.generated_tokens].map((n) => el("span", { title: count(n) }, compact(n))), hours(key.seconds)]);
    const head = [[say("key")], ...["requests", "tokens_in", "tokens_cached", "tokens_out", "seconds"].map((key) => [say(key), "n"])];
    return [table(head, rows, "usage"), el("p", { class: "dim" }, say("usage_since", clock(used.since_unix_s)))];
  });
}

export function templates(state) {
  const told = state.templates;
  by("templates").hidden = !told.length;
  put(by("template_rows"), [language, told], () => table([[say("template")], [say("template_state")], [say("hits"), "n"], [say("saved"), "n"]],
    told.map((one) => [one.name, templateState(one), one.requests ? `${share(one.hits / one.requests)} / ${compact(one.requests)}` : UNKNOWN, hours(one.saved_s)]), "usage"));
}

function templateState(one) {
  const key = `template_${one.state}`;
  const word = knows(key) ? say(key, share(one.progress)) : one.state;
  return one.why ? el("span", { title: one.why }, word) : word;
}

export function events(state) {
  by("events").hidden = !state.events.length;
  put(by("event_rows"), [language, state.events], () => state.events.map((event) => el("li", null,
    el("time", { datetime: new Date(event.at_unix_s * 1000).toISOString() }, clock(event.at_unix_s)),
    `${event.model_name}${say("colon")}${stateWord(event.state)}`, event.reason && el("div", { class: "dim" }, words(event.reason)))));
}
