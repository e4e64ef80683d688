// Draws the last hour: requests a second by what became of them, and the share that was on time.
import { $, Rows, element, setText } from "./dom.js";
import { bytes, percent, rate } from "./format.js";
import { areas, lost, rateOf, shareLine, shareOf } from "./samples.js";

const tableStep = 300; // seconds

function clock(ago) {
  return new Date(Date.now() - ago * 1000).toLocaleTimeString([], { hour12: false });
}

export class TrendView {
  constructor(samples) {
    this.samples = samples;
    this.ago = null; // what is pointed at, seconds ago
    this.areas = $("trend-rates").children;
    this.line = $("trend-share").firstElementChild;
    this.table = new Rows($("trend-table").tBodies[0], (sum) => sum.place, () => {
      const cells = Array.from({ length: 9 }, (_, i) => (i === 0 ? element("th", { scope: "row" }) : element("td", { class: "num" })));
      return { row: element("tr", {}, ...cells), cells };
    }, ({ cells }, sum) => {
      const share = (n) => (sum.on_time + sum.late + lost(sum) > 0 ? percent(n / (sum.on_time + sum.late + lost(sum))) : "–");
      [
        clock(this.samples.nowS - sum.end_s), rate(rateOf(sum)), share(sum.on_time), share(sum.late), share(sum.refused),
        share(sum.failed - sum.invalid), percent(sum.exec_share), percent(sum.load_share), sum.resident_bytes ? bytes(sum.resident_bytes) : "–",
      ].forEach((text, i) => setText(cells[i], text));
    });
    const box = $("trend");
    box.addEventListener("pointermove", (event) => {
      const { left, width } = box.getBoundingClientRect();
      this.#point(Math.max(0, Math.min(1, 1 - (event.clientX - left) / width)) * this.samples.span());
    });
    box.addEventListener("pointerleave", () => this.#point(null));
    box.addEventListener("blur", () => this.#point(null));
    box.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: 10, ArrowRight: -10, PageUp: 300, PageDown: -300 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.#point(Math.max(0, Math.min(this.samples.span(), (this.ago ?? 0) + by)));
    });
    $("trend-box").addEventListener("toggle", () => this.#tell());
  }

  draw() {
    const { most, paths } = areas(this.samples);
    paths.forEach((path, i) => this.areas[i].setAttribute("d", path));
    const { floor, path } = shareLine(this.samples);
    this.line.setAttribute("d", path);
    const minutes = this.samples.span() / 60;
    setText($("trend-title"), `Requests a second, the last ${minutes === 60 ? "hour" : `${minutes} minutes`}`);
    [minutes, minutes / 2].forEach((ago, i) => setText($("trend-times").children[i], ago === 60 ? "an hour ago" : `${ago} min ago`));
    const some = this.samples.list.length > 0;
    setText($("trend-most"), some ? `${rate(most).replace(/\.0+$/, "")}/s` : "");
    setText($("trend-share-least"), some ? percent(floor).replace(/\.0+%/, "%") : "");
    this.#tell();
  }

  #point(ago) {
    this.ago = ago;
    $("trend-mark").hidden = ago === null;
    if (ago !== null) $("trend-mark").style.left = `${(1 - ago / this.samples.span()) * 100}%`;
    this.#tell();
  }

  #tell() {
    const { list } = this.samples;
    const sample = this.ago === null ? list.at(-1) : this.samples.at(this.ago);
    if (list.length === 0) setText($("trend-told"), "There is a sample each ten seconds; there is none yet.");
    else if (!sample) setText($("trend-told"), `${clock(this.ago)}: nothing is known`);
    else {
      const parts = [`${rate(rateOf(sample))} requests/s`, `${percent(shareOf(sample))} on time`];
      if (sample.late > 0) parts.push(`${rate(sample.late / sample.seconds)} late/s`);
      if (lost(sample) > 0) parts.push(`${rate(lost(sample) / sample.seconds)} refused or failed/s`);
      setText($("trend-told"), `${clock(this.samples.nowS - sample.end_s)}: ${parts.join(", ")}`);
    }
    if ($("trend-box").open) this.table.show(this.samples.spans(tableStep));
  }
}
