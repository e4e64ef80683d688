// The table of devices.
import { $, Rows, element, setText } from "./dom.js";
import { bytes, classText, count, percent } from "./format.js";

function meter(label) {
  const fill = element("i");
  const text = element("span");
  const bar = element("div", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  return { cell: element("div", { class: "measured" }, bar, text), bar, fill, text };
}

function show(of, share, text) {
  const p = Math.round((share ?? 0) * 1000) / 10;
  of.fill.style.width = `${p}%`;
  of.bar.setAttribute("aria-valuenow", p);
  of.bar.setAttribute("aria-valuetext", text);
  setText(of.text, text);
}

function doing(device) {
  if (!device.alive) return "taken out: it failed or hangs";
  if (device.now.length === 0) return "idle";
  return device.now
    .map((a) => {
      const what = a.executor === "LOAD" ? `loads ${a.model}` : `${a.begun ? "runs" : "will run"} ${a.model} × ${a.batch}`;
      const cls = a.class !== "normal" && a.executor !== "LOAD" ? ` (${classText(a.class)})` : "";
      return `${what}${cls}${a.waiting ? `, ${count(a.waiting)} waiting` : ""}`;
    })
    .join("; ");
}

const rows = new Rows(
  $("devices").tBodies[0],
  (device) => device.number,
  () => {
    const name = element("span");
    const state = element("small");
    const busy = meter("Busy");
    const pages = meter("Memory of weights in use");
    const models = element("span");
    const now = element("span");
    const row = element(
      "tr", {},
      element("th", { scope: "row" }, name, " ", state),
      element("td", { "data-label": "Busy" }, busy.cell),
      element("td", { "data-label": "Memory" }, pages.cell),
      element("td", { "data-label": "Models" }, models),
      element("td", { "data-label": "Now", class: "now" }, now));
    return { row, name, state, busy, pages, models, now };
  },
  (kept, device) => {
    setText(kept.name, `${device.number}  ${device.name}`);
    kept.row.classList.toggle("down", !device.alive);
    setText(kept.state, device.alive ? (device.lost ? `was out ${count(device.lost)} times` : "") : "out");
    show(kept.busy, device.busy, percent(device.busy));
    const total = Math.max(1, device.pages_total);
    show(kept.pages, device.pages_used / total, `${bytes(device.pages_used * device.page_bytes)} of ${bytes(device.pages_total * device.page_bytes)}`);
    setText(kept.models, count(device.models));
    setText(kept.now, doing(device));
  });

export const showDevices = (devices) => rows.show(devices.slice(0, 256));
