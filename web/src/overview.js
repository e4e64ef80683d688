// What an operator asks first: how much was on time, what was lost and why, where the time went, and memory.
import { $, Rows, element, setText } from "./dom.js";
import { bytes, count, milliseconds, percent, rate, reasonText } from "./format.js";
import { requestsLink } from "./requests.js";

const tileNames = ["On time", "Goodput", "Requests", "Refused", "Late", "Failed"];
const tiles = tileNames.map((name) => {
  const value = element("dd");
  const about = element("small");
  return { row: element("div", {}, element("dt", {}, name), value, about), value, about };
});
$("tiles").append(...tiles.map(({ row }) => row));

function showTiles(minute) {
  const all = minute.on_time + minute.late + minute.refused + minute.failed - minute.invalid;
  const share = (n) => (all > 0 ? percent(n / all) : "");
  const failed = minute.failed - minute.invalid;
  const shown = [
    [percent(minute.on_time_share), all > 0 ? `of ${count(all)}` : "no requests"],
    [minute.goodput === null ? "–" : `${rate(minute.goodput)}/s`, "answers on time"],
    [minute.rate === null ? "–" : `${rate(minute.rate)}/s`, "the last 10 s"],
    [count(minute.refused), share(minute.refused)],
    [count(minute.late), share(minute.late)],
    [count(failed), [share(failed), minute.invalid > 0 ? `bad data ${count(minute.invalid)}` : ""].filter(Boolean).join(", ")],
  ];
  shown.forEach(([value, about], i) => {
    setText(tiles[i].value, value);
    setText(tiles[i].about, about);
  });
  const lost = minute.on_time_share;
  tiles[0].value.className = lost === null ? "quiet-value" : lost < 0.95 ? "worse" : lost < 0.99 ? "bit-worse" : "fine";
}

// Each with a link to the requests that it was said to.
const reasons = new Rows($("reasons"), ({ reason }) => reason, ({ reason }) => {
  const link = element("a", { href: requestsLink({ reason }) });
  const fill = element("i");
  const number = element("span", { class: "num" });
  return { row: element("li", {}, link, element("div", { class: "meter", "aria-hidden": "true" }, fill), number), link, fill, number };
}, (kept, { reason, n, most }) => {
  setText(kept.link, reason === "late" ? "late" : reasonText(reason));
  kept.fill.style.width = `${(n / most) * 100}%`;
  setText(kept.number, count(n));
});

function showReasons(minute) {
  const list = Object.entries(minute.reasons).map(([reason, n]) => ({ reason, n }));
  if (minute.late > 0) list.push({ reason: "late", n: minute.late });
  list.sort((a, b) => b.n - a.n || (a.reason < b.reason ? -1 : 1));
  const most = Math.max(1, ...list.map(({ n }) => n));
  reasons.show(list.map((each) => ({ ...each, most })));
  $("reasons").classList.toggle("none", list.length === 0);
}

// A bar of parts, and the list that names them.
class Parts {
  constructor(bar, list) {
    this.bar = new Rows(bar, ({ name }) => name, ({ name }) => ({ row: element("i", { class: `part ${name.replaceAll(/[^a-z_]/g, "")}` }) }),
      (kept, { share }) => { kept.row.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`; });
    this.list = new Rows(list, ({ name }) => name, ({ name }) => {
      const text = element("span");
      return { row: element("li", {}, element("i", { class: `dot part ${name.replaceAll(/[^a-z_]/g, "")}` }), text), text };
    }, (kept, { text }) => setText(kept.text, text));
  }
  show(parts) {
    this.bar.show(parts);
    this.list.show(parts);
  }
}

const timeParts = new Parts($("time-bar"), $("time-parts"));
const memoryParts = new Parts($("memory-bar"), $("memory-parts"));

const deviceTime = ["EXEC", "LOAD"].map((name) => {
  const fill = element("i");
  const text = element("span");
  return { row: element("div", {}, element("dt", {}, `Devices’ ${name}`), element("dd", { class: "measured" }, element("div", { class: "meter", "aria-hidden": "true" }, fill), text)), fill, text };
});
$("device-time").append(...deviceTime.map(({ row }) => row));

function showTime(time) {
  const took = time.latency_ms;
  setText($("time-text"), took === null ? "No request was answered in the last minute." : `An answer took ${milliseconds(took)} on the mean of the last minute:`);
  const steps = took === null ? [] : [["waiting", time.waiting_ms], ["input", time.input_ms], ["exec", time.exec_ms], ["output", time.output_ms]];
  const rest = took === null ? 0 : Math.max(0, took - steps.reduce((sum, [, ms]) => sum + ms, 0));
  if (took !== null) steps.push(["answer", rest]);
  const names = { waiting: "waiting", input: "input", exec: "EXEC", output: "output", answer: "the way back" };
  timeParts.show(steps.map(([name, ms]) => ({ name, share: took > 0 ? ms / took : 0, text: `${names[name]} ${milliseconds(ms)}` })));
  [time.exec_share, time.load_share].forEach((share, i) => {
    deviceTime[i].fill.style.width = `${(share ?? 0) * 100}%`;
    setText(deviceTime[i].text, percent(share));
  });
  const margin = time.margin;
  setText($("margin-text"), margin === null ? "" : `Margin that the policy keeps for such an answer: ${milliseconds(margin.ms)} (${milliseconds(margin.dispatch_ms)} to the device, ${milliseconds(margin.answer_ms)} for the way back, ${percent(margin.overrun)} of EXEC).`);
}

const partNames = { weights: "weights", plans: "plans", libraries: "libraries", tensors: "tensors", workspace: "workspaces", sizes: "plans for sizes", processes: "other engines", loading: "loading", bodies: "requests and answers" };

function showMemory(memory) {
  $("memory-bar").hidden = memory === null;
  if (memory === null) {
    setText($("memory-text"), "Nobody divides this server’s memory.");
    memoryParts.show([]);
    return;
  }
  const { limit, resident, parts } = memory;
  setText($("memory-text"), `Weights ${bytes(parts.weights ?? 0)}, resident ${bytes(resident)}, limit ${bytes(limit)}`);
  $("memory-text").className = resident > limit ? "worse" : "";
  memoryParts.show(Object.entries(parts).filter(([, size]) => size > 0).map(([name, size]) => ({ name, share: size / limit, text: `${partNames[name] ?? name} ${bytes(size)}` })));
  mark.style.left = `${Math.min(1, resident / limit) * 100}%`;
  if (mark.parentNode !== $("memory-bar")) $("memory-bar").append(mark);
}
const mark = element("b", { class: "mark", title: "resident" });

export function showOverview(minute) {
  showTiles(minute);
  showReasons(minute);
  showTime(minute.time);
  showMemory(minute.memory);
}
