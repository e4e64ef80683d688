// The table of models, and the orders to load and unload them.
import { $, Rows, element, setText } from "./dom.js";
import { bound, classText, colour, count, milliseconds, percent, rate, reasonText } from "./format.js";
import { modelKey } from "./track.js";

const mostRows = 300;
const states = { ready: "ready", not_ready: "not ready", left_out: "not loaded" };

export class Models {
  // order(model name, loads): a promise; failures are shown by whoever gives it.
  constructor(order) {
    this.order = order;
    this.models = [];
    this.places = new Map();
    this.orders = false;
    this.underWay = new Map(); // model names to "loading ..." or "unloading ..."
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.rows = new Rows($("model-table").tBodies[0], modelKey, (model) => this.#make(model), (kept, model) => this.#update(kept, model));
    $("filter").addEventListener("input", () => this.show(this.models, this.orders));
  }

  place(key) {
    return this.places.get(key) ?? -1;
  }

  show(models, orders) {
    this.models = models;
    this.orders = orders;
    this.places = new Map(models.map((model, i) => [modelKey(model), i]));
    const part = $("filter").value.toLowerCase();
    const found = part ? models.filter((model) => model.name.toLowerCase().includes(part)) : models;
    this.rows.show(found.slice(0, mostRows));
    const ready = models.filter((model) => model.state === "ready").length;
    setText($("models-count"), `${count(ready)} of ${count(models.length)} ready${found.length > mostRows ? `; the first ${mostRows} of ${count(found.length)} are shown` : part ? `; ${count(found.length)} shown` : ""}`);
    $("filter").hidden = models.length < 8 && !part;
  }

  #make(model) {
    const k = {
      dot: element("i", { class: "dot" }),
      name: element("b"),
      about: element("small"),
      state: element("span", { class: "pill" }),
      where: element("small"),
      rate: element("span"),
      p50: element("i", { class: "p50" }),
      p99: element("i", { class: "p99" }),
      slo: element("i", { class: "slo" }),
      latency: element("span"),
      onTime: element("span"),
      reasons: element("span", { class: "wrap" }),
      button: element("button", { type: "button" }),
    };
    k.bar = element("div", { class: "latency", role: "img" }, k.p99, k.p50, k.slo);
    k.button.addEventListener("click", () => this.#press(k.model));
    k.row = element(
      "tr", {},
      element("th", { scope: "row", class: "model" }, k.dot, k.name, " ", k.about),
      element("td", { "data-label": "State", class: "state" }, k.state, " ", k.where),
      element("td", { "data-label": "Requests/s", class: "num" }, k.rate),
      element("td", { "data-label": "Latency" }, element("div", { class: "measured" }, k.bar, k.latency)),
      element("td", { "data-label": "On time", class: "num" }, k.onTime),
      element("td", { "data-label": "Not served" }, k.reasons),
      element("td", { class: "right" }, k.button));
    k.model = model;
    return k;
  }

  #update(k, model) {
    k.model = model;
    k.dot.style.background = colour(this.place(modelKey(model)), this.dark.matches);
    setText(k.name, model.name);
    const about = [`v${model.version}`];
    if (model.class !== "normal" && model.class) about.push(classText(model.class));
    if (model.state === "ready" && model.engine && model.engine !== "carillon") about.push(`on ${model.engine}`);
    setText(k.about, about.join(" · "));
    setText(k.state, states[model.state] ?? model.state);
    k.state.className = `pill ${model.state === "ready" ? "good" : model.state === "left_out" ? "" : "bad"}`;
    setText(k.where, model.state === "left_out" ? "" : model.state !== "ready" ? model.reason : model.loaded_on.length === 0 ? "on no device now" : `on device${model.loaded_on.length > 1 ? "s" : ""} ${model.loaded_on.join(", ")}`);
    setText(k.rate, rate(model.rate));

    const minute = model.last_minute;
    const { p50_ms: p50, p99_ms: p99 } = minute;
    const most = Math.max((model.slo_ms ?? 0) * 1.25, (p99 ?? 0) * 1.05, 1e-6);
    k.p50.style.width = `${((p50 ?? 0) / most) * 100}%`;
    k.p99.style.width = `${((p99 ?? 0) / most) * 100}%`;
    k.bar.classList.toggle("over", model.slo_ms !== null && p99 !== null && p99 > model.slo_ms);
    k.slo.hidden = model.slo_ms === null;
    if (model.slo_ms !== null) k.slo.style.left = `${(model.slo_ms / most) * 100}%`;
    const latency = p50 === null ? "no answers" : `${milliseconds(p50)} · ${milliseconds(p99)}`;
    const slo = model.slo_ms === null ? "" : ` / ${bound(model.slo_ms)}`;
    setText(k.latency, latency + slo);
    k.bar.setAttribute("aria-label", p50 === null ? "no answers in the last minute" : `half within ${milliseconds(p50)}, 99% within ${milliseconds(p99)}${model.slo_ms === null ? "" : `, SLO ${bound(model.slo_ms)}`}`);

    setText(k.onTime, percent(minute.on_time_share));
    k.onTime.className = minute.on_time_share === null ? "quiet" : minute.on_time_share < 0.95 ? "worse" : minute.on_time_share < 0.99 ? "bit-worse" : "";
    const reasons = Object.entries(minute.reasons).sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${reasonText(reason)} ${count(n)}`);
    for (const [what, n] of [["late", minute.late], ["bad data", minute.invalid], ["client went", minute.cancelled]]) if (n > 0) reasons.push(`${what} ${count(n)}`);
    setText(k.reasons, reasons.join(", "));

    const doing = this.underWay.get(model.name);
    k.button.hidden = !this.orders;
    k.button.disabled = doing !== undefined;
    const verb = model.state === "ready" ? "Unload" : "Load";
    setText(k.button, doing ?? verb);
    k.button.setAttribute("aria-label", doing ? `${doing} ${model.name}` : `${verb} ${model.name}`);
  }

  async #press(model) {
    const loads = model.state !== "ready";
    const yes = await confirmed(
      loads ? `Load ${model.name}? It is read, compiled and measured beside what serves.` : `Unload ${model.name}? Requests that are under way are answered; those that come later are refused.`,
      loads ? "Load" : "Unload");
    if (!yes || this.underWay.has(model.name)) return;
    this.underWay.set(model.name, loads ? "loading …" : "unloading …");
    this.show(this.models, this.orders);
    try {
      await this.order(model.name, loads);
    } finally {
      this.underWay.delete(model.name);
      this.show(this.models, this.orders);
    }
  }
}

// By what is pressed, not by the dialog's close event: that comes later, when the next question may be open.
function confirmed(text, verb) {
  const dialog = $("confirm");
  setText($("confirm-text"), text);
  setText($("confirm-yes"), verb);
  return new Promise((resolve) => {
    const done = new AbortController();
    const answer = (yes) => {
      done.abort();
      resolve(yes);
    };
    dialog.querySelector("form").addEventListener("submit", (event) => answer(event.submitter?.value === "yes"), { signal: done.signal });
    dialog.addEventListener("cancel", () => answer(false), { signal: done.signal });
    dialog.showModal();
  });
}
