// How values become text, and text becomes elements. Strings get in as text alone, never as markup.

export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

// Changes nothing that is right already: a selection in it stays.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export const count = (value) => Math.round(Number(value)).toLocaleString("en");

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function rate(value) {
  if (value >= 100) return count(value);
  return value >= 0.05 ? value.toFixed(1) : "0";
}

export function duration(microseconds) {
  const ms = Number(microseconds) / 1000;
  if (ms === 0) return "–";
  if (ms < 10) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return `${(ms / 60000).toFixed(1)} min`;
}

export function clock(microseconds) {
  return new Date(Number(microseconds) / 1000).toLocaleTimeString("en-GB");
}

// A bar of blocks by state. `counts` are [class, blocks] from left to right.
export function fillBar(bar, counts) {
  while (bar.children.length < counts.length) bar.append(element("i"));
  counts.forEach(([state, blocks], place) => {
    const part = bar.children[place];
    part.className = state;
    part.style.flexGrow = blocks;
  });
  bar.setAttribute("role", "img");
  const words = counts.map(([state, blocks]) => `${state} ${count(blocks)}`);
  bar.setAttribute("aria-label", words.join(", "));
}

// One row of `body` for each item, in their order; rows stay as long as their key does.
export class Rows {
  constructor(body, make, update) {
    this.body = body;
    this.make = make;
    this.update = update;
    this.rows = new Map();
  }

  show(items, keyOf) {
    const rows = new Map();
    for (const item of items) rows.set(keyOf(item), this.rows.get(keyOf(item)) ?? this.make());
    const wanted = [...rows.values()];
    const there = this.body.children;
    if (wanted.length !== there.length || wanted.some((row, place) => there[place] !== row)) {
      this.body.replaceChildren(...wanted);
    }
    items.forEach((item) => this.update(rows.get(keyOf(item)), item));
    this.rows = rows;
  }
}
