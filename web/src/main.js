// Asks the server in turns, and shows what it says.
import { showDevices } from "./devices.js";
import { $, Rows, element, facts, setText } from "./dom.js";
import { classText, colour, count, duration, microseconds } from "./format.js";
import { Models } from "./models.js";
import { showOverview } from "./overview.js";
import { Requests } from "./requests.js";
import { Samples } from "./samples.js";
import { Refused, Server } from "./server.js";
import { TimelineView } from "./timeline.js";
import { Colours, Track } from "./track.js";
import { TrendView } from "./trend.js";

const statusEvery = 1000;
const timelineEvery = 400;
const trendEvery = 10_000;
const tableRows = 50;
const mostNotes = 5;
const mostLegend = 12;

const server = new Server();
const track = new Track();
const samples = new Samples();
const colours = new Colours();
const models = new Models(order, () => polls[0].now(), colours);
const view = new TimelineView(track, (key) => colours.take(key));
const trend = new TrendView(samples);
new Requests(server);

let goneSince = null;
let wantsKey = false;

const stateText = { ready: "ready", loading: "loading models", draining: "stopping", not_ready: "not ready" };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// --- What goes wrong

function note(text) {
  const shown = element("div", { class: "notice bad", role: "alert" }, element("span", {}, text),
    element("button", { type: "button", "aria-label": "Dismiss", onclick: () => shown.remove() }, "×"));
  $("notes").append(shown);
  while ($("notes").childElementCount > mostNotes) $("notes").firstChild.remove();
}

function gone(error) {
  goneSince ??= new Date();
  $("gone").hidden = false;
  setText($("gone"), `The server does not answer since ${goneSince.toLocaleTimeString([], { hour12: false })} (${error.message}). What you see is old; it is asked again every few seconds.`);
  setText($("state"), "gone");
  $("state").className = "pill bad";
  document.body.classList.add("stale");
}

function back() {
  if (goneSince === null) return;
  goneSince = null;
  $("gone").hidden = true;
  document.body.classList.remove("stale");
}

function askForKey(refused) {
  const first = refused.status === 401 && !server.key;
  wantsKey = true;
  setText($("key-text"), first ? "This server wants a key of an administrator." : `The key was not accepted: ${refused.message}.`);
  if ($("key-form").hidden) {
    $("key-form").hidden = false;
    $("key").focus();
  }
  setText($("state"), "wants a key");
  $("state").className = "pill bad";
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  server.useKey($("key").value.trim(), $("key-keep").checked);
  wantsKey = false;
  setText($("key-text"), "Asking …");
  for (const poll of polls) poll.now();
});

// --- Asking in turns

// Asks again and again, one question at a time; not while nobody looks, nor while a key is missing.
class Poll {
  constructor(every, ask) {
    this.every = every;
    this.ask = ask;
    this.run();
  }
  now() {
    this.again = true;
    this.wake?.();
  }
  async run() {
    for (let failures = 0; ; ) {
      let wait = this.every;
      this.again = false;
      if (!document.hidden && !wantsKey) {
        try {
          await this.ask();
          failures = 0;
        } catch (error) {
          wait = failed(error, ++failures);
        }
      }
      // Who asked for it while a question was under way may want another answer.
      if (!this.again) await Promise.race([sleep(wait), new Promise((resolve) => (this.wake = resolve))]);
    }
  }
}

function failed(error, failures) {
  if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
    back();
    askForKey(error);
    return 1000;
  }
  if (error instanceof Refused && error.status === 429) return Math.max(1, error.wait) * 1000;
  gone(error);
  return Math.min(5000, 500 * 2 ** failures);
}

async function askStatus() {
  const query = models.query();
  const status = await server.status(query);
  back();
  $("key-form").hidden = true;
  $("key").value = "";
  showStatus(status, JSON.stringify(query) === JSON.stringify(models.query()));
}

async function askTrend() {
  samples.take(await server.trend(samples.next));
  trend.draw();
}

async function askTimeline() {
  if (view.paused) return;
  const before = performance.now();
  const answer = await server.timeline(track.next);
  if (view.paused) return; // it was told to stand still meanwhile
  const leftOut = track.take(answer);
  // The server's clock was read somewhere between question and answer.
  view.heard(answer.now_us + ((performance.now() - before) / 2) * 1000);
  setText($("missing"), leftOut > 0 ? `${count(leftOut)} actions were too many to show` : "");
  showTable();
}

// --- What is shown

// `asked`: its models are those that are wanted now.
function showStatus({ server: told, devices, models: list, model_counts: counts, last_minute_s: minute, last_minute: overview }, asked) {
  setText($("version"), told.version);
  setText($("state"), stateText[told.state] ?? told.state);
  $("state").className = `pill ${told.state === "ready" ? "good" : told.state === "loading" ? "" : "bad"}`;
  $("state").title = told.why ?? "";
  document.title = told.state === "ready" ? "Carillon" : `Carillon (${stateText[told.state] ?? told.state})`;
  facts($("facts"), [["policy", told.policy || "–"], ["up", duration(told.uptime_s)], ["open requests", count(told.open_requests)], ...(minute < 55 ? [["statistics of the last", duration(minute)]] : [])]);
  facts($("options"), [["--model-control-mode", told.model_control || "none"], ...Object.entries(told.options)]);
  view.devices = devices;
  showDevices(devices);
  showOverview(overview);
  if (asked) models.show(list, counts, told.model_control === "explicit");
  showLegend();
}

// Of the models that did most of late, in the order of their colours.
let legend = "";
function showLegend() {
  const times = new Map();
  for (const bar of track.bars) times.set(bar.model, (times.get(bar.model) ?? 0) + 1);
  const most = [...times].sort((a, b) => b[1] - a[1]).slice(0, mostLegend).map(([model]) => ({ model, place: colours.take(model) }));
  const shown = most.sort((a, b) => a.place - b.place);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const others = times.size - shown.length;
  const text = JSON.stringify([shown, others, dark]);
  if (text === legend) return;
  legend = text;
  $("legend").replaceChildren(...shown.map(({ model, place }) => {
    const dot = element("i", { class: "dot" });
    dot.style.background = colour(place, dark);
    const [name, version] = model.split("\n");
    return element("li", {}, dot, version === "1" ? name : `${name} v${version}`);
  }), ...(others > 0 ? [element("li", { class: "quiet" }, `and ${count(others)} others`)] : []));
}

// The newest executions and loads. The row at a place is used again for whatever comes to be there.
const table = new Rows($("actions").tBodies[0], (shown) => shown.place, makeAction, updateAction);

function makeAction() {
  const cells = Array.from({ length: 8 }, (_, i) =>
    i === 2 ? element("th", { scope: "row" }) : element("td", i >= 4 && i <= 6 ? { class: "num" } : {}));
  return { row: element("tr", {}, ...cells), cells };
}

function updateAction({ cells }, { bar }) {
  const [name, version] = bar.model.split("\n");
  [
    `${((track.nowUs - bar.end) / 1e6).toFixed(2)} s ago`,
    String(bar.row.device),
    `${name} v${version}`,
    bar.row.executor === "LOAD" ? "load" : bar.cls === "normal" ? "execution" : `execution, ${classText(bar.cls)}`,
    bar.batch ? String(bar.batch) : "–",
    microseconds(bar.end - bar.begin),
    microseconds(bar.predicted),
    bar.status.replaceAll("_", " "),
  ].forEach((text, i) => setText(cells[i], text));
}

function showTable() {
  if (!$("actions-box").open) return;
  const shown = [];
  for (let i = track.bars.length - 1; i >= 0 && shown.length < tableRows; --i) {
    const bar = track.bars[i];
    if (bar.row.executor === "EXEC" || bar.row.executor === "LOAD") shown.push({ place: shown.length, bar });
  }
  table.show(shown);
}
$("actions-box").addEventListener("toggle", showTable);

async function order(name, loads) {
  try {
    await (loads ? server.load(name) : server.unload(name));
  } catch (error) {
    note(`${name} could not be ${loads ? "loaded" : "unloaded"}: ${error.message}`);
  }
  polls[0].now();
}

const polls = [new Poll(statusEvery, askStatus), new Poll(timelineEvery, askTimeline), new Poll(trendEvery, askTrend)];
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const poll of polls) poll.now();
});
