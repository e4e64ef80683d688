// The table of models, and the orders to load and unload them.
import { $, Rows, element, setText } from "./dom.js";
import { bound, classText, colour, count, milliseconds, percent, rate, reasonText } from "./format.js";
import { requestsLink } from "./requests.js";
import { modelKey } from "./track.js";

const states = { ready: "ready", coming: "loading", not_ready: "not ready", left_out: "not loaded" };

export class Models {
  // order(model name, loads): a promise; failures are shown by whoever gives it. ask(): another page is wanted.
  // colours: a model's place among those that have a colour.
  constructor(order, ask, colours) {
    Object.assign(this, { order, ask, colours });
    this.models = [];
    this.counts = { all: 0, ready: 0, broken: 0, found: 0 };
    this.orders = false;
    this.offset = 0;
    this.underWay = new Map(); // model names to "loading ..." or "unloading ..."
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.rows = new Rows($("model-table").tBodies[0], modelKey, (model) => this.#make(model), (kept, model) => this.#update(kept, model));
    for (const [id, event] of [["filter", "input"], ["sort", "change"], ["page-size", "change"]]) $(id).addEventListener(event, () => this.#turn(0));
    $("page-before").addEventListener("click", () => this.#turn(this.offset - this.#size()));
    $("page-after").addEventListener("click", () => this.#turn(this.offset + this.#size()));
  }

  // What the server is asked for.
  query() {
    const part = $("filter").value;
    return { sort: $("sort").value, offset: this.offset, limit: this.#size(), ...(part ? { name: part } : {}) };
  }

  #size() {
    return Number($("page-size").value);
  }

  #turn(offset) {
    this.offset = Math.max(0, offset);
    this.ask();
  }

  // An answer to query().
  show(models, counts, orders) {
    Object.assign(this, { models, counts, orders });
    const size = this.#size();
    if (models.length === 0 && this.offset > 0) {
      // There are fewer than there were.
      this.#turn(Math.max(0, Math.ceil(counts.found / size) - 1) * size);
      return;
    }
    this.rows.show(models);
    const part = $("filter").value;
    const about = [`${count(counts.ready)} of ${count(counts.all)} ready`];
    if (counts.broken > 0) about.push(`${count(counts.broken)} broken`);
    if (part) about.push(`${count(counts.found)} found`);
    setText($("models-count"), counts.all === 0 ? "this server has none" : about.join(", "));
    $("filter").hidden = counts.all < 8 && !part;
    $("model-table").hidden = models.length === 0;
    $("pager").hidden = counts.found <= Number($("page-size").options[0].value);
    setText($("page-text"), `${count(this.offset + 1)} to ${count(this.offset + models.length)} of ${count(counts.found)}`);
    $("page-before").disabled = this.offset === 0;
    $("page-after").disabled = this.offset + models.length >= counts.found;
  }

  #again() {
    this.show(this.models, this.counts, this.orders);
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
      reasons: element("a", { class: "wrap", href: "#requests?" }),
      button: element("button", { type: "button" }),
    };
    k.bar = element("div", { class: "latency", role: "img" }, k.p99, k.p50, k.slo);
    k.button.addEventListener("click", () => this.#press(k.model));
    k.row = element(
      "tr", {},
      element("th", { scope: "row", class: "model" }, k.dot, k.name, " ", k.about),
      element("td", { "data-label": "State", class: "state" }, k.state, " ", k.where),
      element("td", { "data-label": "Requests/s", class: "num" }, k.rate),
      element("td", { "data-label": "Latency" }, element("div", { class: "measured latencies" }, k.bar, k.latency)),
      element("td", { "data-label": "On time", class: "num" }, k.onTime),
      element("td", { "data-label": "Not on time" }, k.reasons),
      element("td", { class: "right" }, k.button));
    k.model = model;
    return k;
  }

  #update(k, model) {
    k.model = model;
    k.dot.style.background = colour(this.colours.place(modelKey(model)), this.dark.matches);
    setText(k.name, model.name);
    const about = [`v${model.version}`];
    if (model.class !== "normal" && model.class) about.push(classText(model.class));
    if (model.state === "ready" && model.engine && model.engine !== "carillon") about.push(`on ${model.engine}`);
    setText(k.about, about.join(" · "));
    setText(k.state, states[model.state] ?? model.state);
    k.state.className = `pill ${model.state === "ready" ? "good" : model.state === "not_ready" ? "bad" : ""}`;
    setText(k.where, model.state === "not_ready" ? model.reason : model.state !== "ready" ? "" : model.loaded_on.length === 0 ? "on no device now" : `on device${model.loaded_on.length > 1 ? "s" : ""} ${model.loaded_on.join(", ")}`);
    setText(k.rate, rate(model.rate));

    const minute = model.last_minute;
    const { p50_ms: p50, p99_ms: p99 } = minute;
    const most = Math.max((model.slo_ms ?? 0) * 1.25, (p99 ?? 0) * 1.05, 1e-6);
    k.p50.style.width = `${((p50 ?? 0) / most) * 100}%`;
    k.p99.style.width = `${((p99 ?? 0) / most) * 100}%`;
    k.bar.classList.toggle("over", model.slo_ms !== null && p99 !== null && p99 > model.slo_ms);
    k.slo.hidden = model.slo_ms === null;
    if (model.slo_ms !== null) k.slo.style.left = `${(model.slo_ms / most) * 100}%`;
    const latency = p50 === null ? ["no answers"] : [`p50 ${milliseconds(p50)}`, `p99 ${milliseconds(p99)}`];
    if (model.slo_ms !== null) latency.push(`SLO ${bound(model.slo_ms)}`);
    setText(k.latency, latency.join(" · "));
    k.bar.hidden = p50 === null;
    k.bar.setAttribute("aria-label", p50 === null ? "no answers in the last minute" : `half within ${milliseconds(p50)}, 99% within ${milliseconds(p99)}${model.slo_ms === null ? "" : `, SLO ${bound(model.slo_ms)}`}`);

    setText(k.onTime, percent(minute.on_time_share));
    k.onTime.className = minute.on_time_share === null ? "quiet" : minute.on_time_share < 0.95 ? "worse" : minute.on_time_share < 0.99 ? "bit-worse" : "";
    const reasons = Object.entries(minute.reasons).sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${reasonText(reason)} ${count(n)}`);
    const late = minute.promised.expected_late >= 0.5 ? `late (${count(Math.round(minute.promised.expected_late))} expected)` : "late";
    for (const [what, n] of [[late, minute.late], ["bad data", minute.invalid], ["client went", minute.cancelled]]) if (n > 0) reasons.push(`${what} ${count(n)}`);
    setText(k.reasons, reasons.join(", "));
    k.reasons.hidden = reasons.length === 0;
    k.reasons.setAttribute("href", requestsLink({ model: model.name, reason: minute.refused > 0 ? "all" : minute.late > 0 ? "late" : "" }));

    const doing = this.underWay.get(model.name);
    k.button.hidden = !this.orders;
    k.button.disabled = doing !== undefined;
    const verb = model.state === "ready" ? "Unload" : "Load";
    k.button.hidden ||= model.state === "coming";
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
    this.#again();
    try {
      await this.order(model.name, loads);
    } finally {
      this.underWay.delete(model.name);
      this.#again();
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
