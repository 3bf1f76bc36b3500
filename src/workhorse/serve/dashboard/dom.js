// Elements without markup strings: what comes from elsewhere can only ever be text.

const SVG = "http://www.w3.org/2000/svg";

export const by = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return node;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Put children into a node in place of what it has, but only when `same` says something new: a
// reader's selection, focus and opened details stay while nothing changes.
const shown = new WeakMap();

export function put(node, same, build) {
  const key = JSON.stringify(same);
  if (shown.get(node) === key) return;
  shown.set(node, key);
  node.replaceChildren(...[build()].flat(Infinity).filter(Boolean));
}

export function table(head, rows, kind) {
  return el("table", { class: kind },
    el("thead", null, el("tr", null, head.map(([text, align]) => el("th", { class: align, scope: "col" }, text)))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((cell, i) =>
      el(i === 0 ? "th" : "td", { class: head[i][1], scope: i === 0 ? "row" : null }, cell))))));
}
