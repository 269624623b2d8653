// Asks the router for its state every second, and says so when it does not answer.
import { byId, setText } from "./dom.js";
import { showFleet } from "./fleet.js";
import { showNodes } from "./nodes.js";
import { showRequests } from "./requests.js";

const PERIOD = 1000; // milliseconds
const PATIENCE = 2000;

let key = ""; // lives as long as the page
let seen = null; // when the router answered last
let problem = "";

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

async function ask() {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch("ui/state", { headers, signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 403) {
    refuse((await response.json()).error.message);
    return;
  }
  if (!response.ok) throw new Error(`the router answers ${response.status}`);
  show(await response.json());
}

function show(state) {
  byId("access").hidden = true;
  byId("fleet").hidden = false;
  seen = Date.now();
  problem = "";
  showFleet(state);
  showNodes(state.nodes);
  showRequests(state.requests);
}

function refuse(message) {
  byId("fleet").hidden = true;
  byId("access").hidden = false;
  setText(byId("refusal"), key ? `The router does not take this key: ${message}.` : `${message}.`);
  seen = null;
  problem = "no access";
}

function showStatus() {
  const lost = seen !== null && problem !== "";
  const age = lost ? Math.round((Date.now() - seen) / 1000) : 0;
  let text = problem || "live";
  if (lost) text = `no answer, last seen ${age} s ago`;
  setText(byId("status"), text);
  byId("status").dataset.state = problem ? "lost" : "live";
  byId("status").title = problem;
  document.body.classList.toggle("stale", lost);
}

async function run() {
  for (;;) {
    await visible();
    try {
      await ask();
    } catch (error) {
      problem = seen === null ? "the router does not answer" : error.message;
    }
    showStatus();
    await pause(PERIOD);
  }
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = byId("key").value.trim();
  byId("key").value = "";
  if (!/^[\x21-\x7e]+$/.test(typed)) {
    setText(byId("refusal"), "A key has letters, digits and signs of ASCII, and no spaces.");
    return;
  }
  key = typed;
  ask().then(showStatus, () => {});
});

run();
