// The whole fleet in a few numbers, and where its memory is.
import { byId, count, duration, element, fillBar, percent, rate, setText } from "./dom.js";
import { allBlocks, cpuParts, health, kvParts } from "./nodes.js";

const tiles = new Map();

function tile(label, value, note = "") {
  if (!tiles.has(label)) {
    const parts = [element("span", "dim", label), element("strong"), element("span", "dim")];
    byId("tiles").append(element("div", "tile", ...parts));
    tiles.set(label, parts);
  }
  setText(tiles.get(label)[1], value);
  setText(tiles.get(label)[2], note);
}

export function showFleet(state) {
  const { rates, nodes } = state;
  const up = nodes.filter((node) => health(node) === "up").length;
  const waiting = state.queue.reduce((sum, each) => sum + each.waiting, 0);
  const classes = state.queue.filter((each) => each.waiting > 0);
  const words = classes.map((each) => `${count(each.waiting)} ${each.priority}`);
  const oldest = Math.max(0, ...classes.map((each) => Number(each.oldest_us)));
  const queued = waiting ? `${words.join(", ")}; oldest ${duration(oldest)}` : "nobody waits for room";
  tile("Tokens/s", rate(rates.output_tokens), "generated");
  tile("Prompt tokens/s", rate(rates.prompt_tokens), "looked up in the caches");
  tile("Cache hits", percent(rates.hit_tokens, rates.prompt_tokens), "of prompt tokens, last 10 s");
  tile("In flight", count(state.in_flight), "requests at this router");
  tile("Queue", count(waiting), queued);
  const all = up === nodes.length;
  tile("Nodes up", `${up} of ${nodes.length}`, all ? "all take requests" : "see below");
  setText(byId("about"), [state.model || "no model yet", state.policy, state.version].join(" · "));
  showMemory(allBlocks(nodes));
}

function showMemory(of) {
  const total = of.held + of.cached + of.free;
  const cpu = of.cpuHeld + of.cpuCached + of.cpuFree;
  fillBar(byId("memory"), kvParts(of));
  for (const [state, number] of kvParts(of)) {
    setText(byId(state), `${count(number)} (${percent(number, total)})`);
  }
  setText(byId("memory-note"), `${count(total)} blocks on the nodes that answer`);
  byId("swap").hidden = byId("swap-legend").hidden = cpu === 0;
  if (cpu === 0) return;
  fillBar(byId("swap"), cpuParts(of));
  const used = `${count(of.cpuHeld)} held, ${count(of.cpuCached)} cached`;
  setText(byId("swap-legend"), `below: swap space, ${count(cpu)} blocks, ${used}`);
}
