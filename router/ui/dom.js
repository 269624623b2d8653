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

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

export function rate(value) {
  return value >= 100 ? count(value) : value >= 0.05 ? value.toFixed(1) : "0";
}

export function duration(microseconds) {
  const ms = Number(microseconds) / 1000;
  if (ms === 0) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return ms < 60000 ? `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s` : `${(ms / 60000).toFixed(1)} min`;
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
  bar.setAttribute("aria-label", counts.map(([state, blocks]) => `${state} ${count(blocks)}`).join(", "));
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
    const rows = new Map(items.map((item) => [keyOf(item), this.rows.get(keyOf(item)) ?? this.make()]));
    const wanted = [...rows.values()];
    if (wanted.length !== this.body.children.length || wanted.some((row, i) => this.body.children[i] !== row)) {
      this.body.replaceChildren(...wanted);
    }
    items.forEach((item) => this.update(rows.get(keyOf(item)), item));
    this.rows = rows;
  }
}
