// Curves: a line through what was measured, a band from the least to the most where a point
// stands for several, a gap where nothing was read. Nothing is smoothed.

import { el, put, svg } from "./dom.js";
import { clock, day, digits, say } from "./words.js";

const HEIGHT = 132;
const LEFT = 42;
const BOTTOM = 18;
const TOP = 6;
const RIGHT = 6;
const GAP_STEPS = 3.5; // a reading or two may be late without being missing

// Ticks from zero (or from `low`) that a person would choose, four or five of them.
export function ticks(low, high) {
  const rough = Math.max(high - low, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const found = [];
  for (let i = first; i * step < high + step * 0.999; i += 1) found.push(Number((i * step).toPrecision(6)));
  return found;
}

const TIME_STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];

function timeTicks(since, until, room) {
  const step = TIME_STEPS.find((s) => (until - since) / s <= room) || 5184000;
  const shift = new Date(until * 1000).getTimezoneOffset() * 60; // whole local hours and days
  const found = [];
  for (let at = Math.ceil((since - shift) / step) * step + shift; at <= until; at += step) found.push(at);
  return found.map((at) => [at, step >= 86400 ? day(at) : clock(at).slice(-5)]);
}

// Runs of points without a gap between them.
export function runs(points, step) {
  const found = [];
  let last = -Infinity;
  for (const point of points) {
    if (point[0] - last > GAP_STEPS * step) found.push([]);
    found[found.length - 1].push(point);
    last = point[0];
  }
  return found;
}

// `chart`: {title, unit, series: [{name, points}], levels: [{name, value}], events, low}; a point
// is [unix seconds, least, mean, most] in `unit`.
export function draw(host, chart, stretch, nothing) {
  const width = Math.max(240, Math.round(host.clientWidth));
  put(host, [chart, stretch, width, say("now"), nothing], () => build(host, chart, stretch, width));
}

function build(host, chart, stretch, width) {
  const { since, until, step } = stretch;
  const values = chart.series.flatMap((one) => one.points.flatMap((p) => [p[1], p[3]]));
  const levels = chart.levels.filter((level) => level.value !== null && level.value !== undefined);
  const all = [...values, ...levels.map((level) => level.value)];
  const most = Math.max(...all, chart.least_top || 0) || 1;
  const low = chart.from_zero === false && values.length ? Math.min(...all) : 0;
  const ys = ticks(low, most);
  const [bottom, top] = [ys[0], ys[ys.length - 1]];
  const x = (at) => LEFT + ((at - since) / (until - since)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - bottom) / (top - bottom)) * (HEIGHT - TOP - BOTTOM);
  const label = chart.series.map((one) => summary(chart, one)).join("; ") || say("no_points", chart.title);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": label, tabindex: 0 });
  for (const value of ys) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(4)))));
  }
  for (const [at, text] of timeTicks(since, until, (width - LEFT) / 62)) {
    const edge = x(at) > width - 24 ? "end" : x(at) < LEFT + 14 ? "start" : "middle";
    picture.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
      svg("text", { x: x(at), y: HEIGHT - 3, "text-anchor": edge }, text));
  }
  levels.forEach((level, i) => picture.append(svg("line", { class: `level cref ${i ? "ref2" : ""}`, x1: LEFT, x2: width - RIGHT, y1: y(level.value), y2: y(level.value) })));
  for (const event of chart.events || []) {
    if (event >= since && event <= until) picture.append(svg("line", { class: "event", x1: x(event), x2: x(event), y1: HEIGHT - BOTTOM - 7, y2: HEIGHT - BOTTOM }));
  }
  chart.series.forEach((one, i) => picture.append(curve(one.points, i, step, x, y)));
  const caption = el("figcaption", null, el("b", null, say("with_unit", chart.title, chart.unit)),
    (chart.series.length > 1 || levels.length ? chart.series : []).map((one, i) => el("span", { class: `c${i % 4}` }, one.name)),
    levels.map((level, i) => el("span", { class: `cref ${i ? "ref2" : "ref"}` }, `${level.name} ${digits(level.value)}`)));
  hover(host, picture, chart, { since, until, step, width, x });
  return [caption, picture];
}

function curve(points, index, step, x, y) {
  const group = svg("g", { class: `c${index % 4}` });
  for (const run of runs(points, step)) {
    if (run.length === 1) {
      group.append(svg("circle", { class: "dot", cx: x(run[0][0]), cy: y(run[0][2]), r: 1.8 }));
      continue;
    }
    const line = (at) => run.map((p) => `${x(p[0]).toFixed(1)},${y(p[at]).toFixed(1)}`);
    if (run.some((p) => p[3] - p[1] > 0)) {
      group.append(svg("polygon", { class: "band", points: [...line(3), ...line(1).reverse()].join(" ") }));
    }
    group.append(svg("polyline", { class: "curve", points: line(2).join(" ") }));
  }
  return group;
}

function summary(chart, one) {
  if (!one.points.length) return say("no_points", chart.title);
  const last = one.points[one.points.length - 1];
  const low = Math.min(...one.points.map((p) => p[1]));
  const high = Math.max(...one.points.map((p) => p[3]));
  const name = chart.series.length > 1 ? `${chart.title}, ${one.name}` : chart.title;
  return say("point_at", name, `${digits(last[2])} ${chart.unit}`, digits(low), digits(high));
}

function hover(host, picture, chart, place) {
  const times = [...new Set(chart.series.flatMap((one) => one.points.map((p) => p[0])))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  let box = null;
  let index = -1;
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    box?.remove();
    box = null;
  };
  const show = (next) => {
    if (!times.length) return;
    index = Math.max(0, Math.min(times.length - 1, next));
    const at = times[index];
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, place.x(at));
    cursor.setAttribute("visibility", "visible");
    box?.remove();
    box = el("div", { class: "readout", role: "status" }, el("span", { class: "dim" }, clock(at)), chart.series.map((one) => reading(one, at, chart)));
    host.append(box);
    const left = place.x(at) + 10;
    box.style.left = `${Math.max(0, left + box.offsetWidth > place.width ? place.x(at) - box.offsetWidth - 10 : left)}px`;
  };
  picture.addEventListener("pointermove", (event) => {
    const { left, width } = picture.getBoundingClientRect();
    const at = place.since + (((event.clientX - left) / width) * place.width - LEFT) / (place.width - LEFT - RIGHT) * (place.until - place.since);
    let nearest = 0;
    times.forEach((time, i) => { if (Math.abs(time - at) < Math.abs(times[nearest] - at)) nearest = i; });
    show(nearest);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    show((index < 0 ? times.length : index) + step);
  });
}

function reading(one, at, chart) {
  const point = one.points.find((p) => p[0] === at);
  if (!point) return null;
  const range = point[3] > point[1] ? ` (${digits(point[1])}–${digits(point[3])})` : "";
  const name = chart.series.length > 1 ? `${one.name} ` : "";
  return el("span", null, `${name}${digits(point[2])} ${chart.unit}${range}`);
}
