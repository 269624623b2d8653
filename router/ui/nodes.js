// The nodes: what each holds in its memory, and how it is.
import { Rows, byId, count, element, fillBar, percent, rate, setText } from "./dom.js";

const word = (name, prefix) => name.replace(prefix, "").toLowerCase();
export const health = (node) => word(node.health, "NODE_HEALTH_");
const STATES = ["up", "draining", "connecting", "down", "refused"];
const REACHED = ["up", "draining"];

// Blocks of a node by state, in its pool and in its swap space.
export function blocks(node) {
  const load = node.load ?? {};
  const free = Number(load.free_blocks ?? 0);
  const cached = Number(load.evictable_blocks ?? 0);
  return {
    held: Math.max(0, Number(node.num_blocks) - free - cached),
    cached,
    free,
    cpuHeld: Number(load.cpu_held_blocks ?? 0),
    cpuCached: Number(load.cpu_cached_blocks ?? 0),
    cpuFree: Number(load.cpu_free_blocks ?? 0),
  };
}

// Over all nodes that are there.
export function allBlocks(nodes) {
  const sum = { held: 0, cached: 0, free: 0, cpuHeld: 0, cpuCached: 0, cpuFree: 0 };
  for (const node of nodes.filter((each) => REACHED.includes(health(each)))) {
    for (const [state, number] of Object.entries(blocks(node))) sum[state] += number;
  }
  return sum;
}

const parts = (held, cached, free) => [["held", held], ["cached", cached], ["free", free]];
export const kvParts = (of) => parts(of.held, of.cached, of.free);
export const cpuParts = (of) => parts(of.cpuHeld, of.cpuCached, of.cpuFree);

function makeRow() {
  const row = element("tr");
  const parts = {
    name: element("b"),
    address: element("span", "dim line"),
    epoch: element("span", "dim line epoch"),
    state: element("span", "pill"),
    detail: element("span", "detail line"),
    bar: element("div", "bar"),
    swap: element("div", "bar thin"),
    amounts: element("span", "dim line amounts"),
    running: element("td", "number"),
    waiting: element("td", "number"),
    tokens: element("td", "number"),
    hits: element("b"),
    hitsNow: element("span", "dim line"),
  };
  parts.running.dataset.label = "running";
  parts.waiting.dataset.label = "waiting";
  parts.tokens.dataset.label = "tokens/s";
  row.append(
    element("td", "name", parts.name, parts.address, parts.epoch),
    element("td", "state", parts.state, parts.detail),
    element("td", "wide", parts.bar, parts.swap, parts.amounts),
    parts.running, parts.waiting, parts.tokens,
    element("td", "number hits", parts.hits, parts.hitsNow),
  );
  row.parts = parts;
  return row;
}

function updateRow(row, node) {
  const { parts } = row;
  const load = node.load ?? {};
  const of = blocks(node);
  const state = health(node);
  const broken = node.breaker !== "closed";
  row.dataset.state = state;
  setText(parts.name, node.name);
  setText(parts.address, node.address);
  setText(parts.epoch, Number(node.epoch) ? `epoch ${node.epoch}` : "");
  parts.state.dataset.state = broken && state === "up" ? "broken" : state;
  setText(parts.state, broken ? `${state}, breaker ${node.breaker}` : state);
  setText(parts.detail, node.detail);
  fillBar(parts.bar, kvParts(of));
  const cpu = of.cpuHeld + of.cpuCached + of.cpuFree;
  parts.swap.hidden = cpu === 0;
  if (cpu > 0) fillBar(parts.swap, cpuParts(of));
  const swap = cpu > 0 ? ` · swap ${count(of.cpuHeld + of.cpuCached)} of ${count(cpu)}` : "";
  const total = Number(node.num_blocks);
  setText(parts.amounts, total === 0 ? "size not known yet"
    : `${count(of.held)} held · ${count(of.cached)} cached · ${count(of.free)} free${swap}`);
  setText(parts.running, count(load.running ?? 0));
  setText(parts.waiting, count(load.waiting ?? 0));
  const rates = node.rates ?? { output_tokens: 0, hit_tokens: 0, prompt_tokens: 0 };
  setText(parts.tokens, rate(rates.output_tokens));
  setText(parts.hits, percent(Number(load.hit_tokens ?? 0), Number(load.queried_tokens ?? 0)));
  const asked = rates.prompt_tokens > 0;
  setText(parts.hitsNow, asked ? `now ${percent(rates.hit_tokens, rates.prompt_tokens)}` : "");
}

const rows = new Rows(byId("nodes").tBodies[0], makeRow, updateRow);
const calm = (node) => Number(health(node) === "up" && node.breaker === "closed");

// Those that need a look come first.
export function showNodes(nodes) {
  const sorted = [...nodes].sort(
    (a, b) => calm(a) - calm(b) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
  rows.show(sorted, (node) => node.address);
  byId("no-nodes").hidden = nodes.length > 0;
  byId("nodes").hidden = nodes.length === 0;
  const those = (state) => nodes.filter((each) => health(each) === state).length;
  const counts = STATES.map((state) => [those(state), state]);
  const told = counts.filter(([number]) => number > 0).map((each) => each.join(" "));
  setText(byId("nodes-note"), told.join(" · "));
}
