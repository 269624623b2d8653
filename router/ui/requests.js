// The last requests, each with the part that the cache had in it.
import { Rows, byId, clock, count, duration, element, fillBar, percent, setText } from "./dom.js";

// The last columns, with their names where there is no room for the table's head.
const LABELS = {
  prompt: "prompt",
  queue: "queue",
  prefill: "prefill",
  ttft: "first token",
  total: "total",
  preempted: "preempted",
  resumed: "resumed",
};

function makeRow() {
  const row = element("tr");
  const parts = {
    ended: element("td", "ended"),
    id: element("b", "id"),
    about: element("span", "dim line"),
    code: element("span", "pill"),
    error: element("span", "detail line"),
    node: element("b"),
    why: element("span", "dim line"),
    bar: element("div", "bar thin"),
    cached: element("span"),
    predicted: element("span", "dim line"),
  };
  row.append(
    parts.ended,
    element("td", "request", parts.id, parts.about),
    element("td", "state", parts.code, parts.error),
    element("td", "wide", parts.node, parts.why),
    element("td", "cache", parts.bar, parts.cached, parts.predicted),
  );
  for (const [name, label] of Object.entries(LABELS)) {
    parts[name] = element("td", "number");
    parts[name].dataset.label = label;
    row.append(parts[name]);
  }
  row.parts = parts;
  return row;
}

function updateRow(row, request) {
  const { parts } = row;
  const route = request.route ?? {};
  const summary = request.summary ?? {};
  const ok = request.code === "OK";
  setText(parts.ended, clock(request.ended_us));
  setText(parts.id, request.request_id || "–");
  parts.id.title = request.request_id;
  setText(parts.about, [request.endpoint, request.tenant].filter(Boolean).join(" · "));
  parts.code.dataset.state = ok ? "up" : "down";
  setText(parts.code, request.code);
  setText(parts.error, request.error);
  const moved = summary.node && route.node && summary.node !== route.node;
  setText(parts.node, moved ? `${route.node} → ${summary.node}` : route.node || "–");
  const tries = route.attempt > 1 ? ` (try ${route.attempt})` : "";
  setText(parts.why, (route.reason ?? "") + tries);
  showCache(parts, route, summary);
  const [here, there] = [Number(route.queue_us ?? 0), Number(summary.queue_us ?? 0)];
  setText(parts.queue, duration(here + there));
  parts.queue.title = `router ${duration(here)}, node ${duration(there)}`;
  setText(parts.prefill, duration(summary.prefill_us ?? 0));
  setText(parts.ttft, duration(request.ttft_us));
  setText(parts.total, duration(request.total_us));
  setText(parts.preempted, count(summary.preemptions ?? 0));
  setText(parts.resumed, count(request.resumes));
}

function showCache(parts, route, summary) {
  const prompt = route.prompt_tokens ?? 0;
  const { gpu = 0, cpu = 0, remote = 0 } = summary.usage?.cached ?? {};
  const found = gpu + cpu + remote;
  const told = Boolean(summary.node);
  const rest = Math.max(0, prompt - found);
  setText(parts.prompt, prompt ? count(prompt) : "–");
  parts.bar.hidden = !told;
  if (told) fillBar(parts.bar, [["cached", gpu], ["swapped", cpu + remote], ["free", rest]]);
  setText(parts.cached, told ? `${count(found)} (${percent(found, prompt)})` : "–");
  const predicted = route.node ? [`predicted ${count(route.predicted_cached_tokens ?? 0)}`] : [];
  if (cpu > 0) predicted.push(`${count(cpu)} from swap`);
  if (remote > 0) predicted.push(`${count(remote)} from others`);
  setText(parts.predicted, predicted.join(" · "));
}

const rows = new Rows(byId("requests").tBodies[0], makeRow, updateRow);

export function showRequests(requests) {
  rows.show(requests, (request) => `${request.ended_us} ${request.request_id}`);
  byId("no-requests").hidden = requests.length > 0;
  byId("requests").hidden = requests.length === 0;
}
