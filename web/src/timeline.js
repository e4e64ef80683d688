// Draws a Track on a canvas: rows of executors, bars of actions, now at the right edge.
import { $, element, setText } from "./dom.js";
import { classText, colour, microseconds } from "./format.js";
import { findLast } from "./track.js";

export const spans = [1, 2, 5, 10, 15, 20, 30]; // seconds

// What is drawn is so old, so that all of it has been told by then.
const delayUs = 700_000;
const heights = { LOAD: 12, INPUT: 9, EXEC: 22, OUTPUT: 9 };
const gap = 3;
const title = 20; // of a device
const axis = 18;

const executorText = { LOAD: "loading", INPUT: "input", EXEC: "execution", OUTPUT: "output" };

export class TimelineView {
  // place(model key): where the model is in the sorted list, for its colour.
  constructor(track, place) {
    this.track = track;
    this.place = place;
    this.canvas = $("timeline");
    this.context = this.canvas.getContext("2d");
    this.tip = $("tip");
    this.span = spans[3];
    this.paused = false;
    this.offset = 0; // of the server's clock to ours, microseconds
    this.edge = 0; // the time at the right edge
    this.selected = null;
    this.devices = [];
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.places = [];
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#hide());
    this.canvas.addEventListener("blur", () => this.#hide());
    this.canvas.addEventListener("keydown", (event) => this.#press(event));
    $("pause").addEventListener("click", () => this.pause(!this.paused));
    $("zoom").addEventListener("input", () => this.zoom(Number($("zoom").value)));
    this.zoom(3);
    let drawn = 0;
    const frame = (now) => {
      // A picture for each pixel that it moves, and thirty a second at most.
      const every = Math.max(33, (this.span * 1000) / Math.max(1, this.canvas.clientWidth));
      if (!this.still.matches && !this.paused && now - drawn >= every - 4) {
        drawn = now;
        this.draw();
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    new ResizeObserver(() => this.draw()).observe($("canvas-box"));
    this.dark.addEventListener("change", () => this.draw());
  }

  // The server's clock said so at this moment.
  heard(nowUs) {
    const offset = nowUs - performance.now() * 1000;
    // The least delayed answers tell best; what drifts is followed slowly.
    this.offset = this.offset === 0 || Math.abs(offset - this.offset) > 2_000_000 ? offset : Math.max(offset, this.offset + (offset - this.offset) * 0.02);
    if (this.still.matches && !this.paused) this.draw();
  }

  pause(paused) {
    this.paused = paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    setText($("pause"), paused ? "Go on" : "Pause");
    this.draw();
  }

  zoom(step) {
    const at = Math.min(spans.length - 1, Math.max(0, step));
    this.span = spans[at];
    $("zoom").value = String(at);
    $("zoom").setAttribute("aria-valuetext", `${this.span} seconds`);
    setText($("zoom-text"), `${this.span} s`);
    this.#hide();
    this.draw();
  }

  // Where rows lie: few devices show all of their executors, many only what takes long.
  #layout() {
    const places = [];
    const rows = this.track.sortedRows();
    const devices = new Set(rows.map((row) => row.device));
    let y = 0;
    let device = null;
    for (const row of rows) {
      if (devices.size > 4 && (row.executor === "INPUT" || row.executor === "OUTPUT")) continue;
      if (row.device !== device) {
        device = row.device;
        places.push({ title: `${device}  ${this.devices[device]?.name ?? ""}`, y, height: title });
        y += title;
      }
      const height = heights[row.executor] + (row.lanes > 1 ? (row.lanes - 1) * (row.executor === "EXEC" ? 9 : 3) : 0);
      places.push({ row, y, height });
      y += height + gap;
    }
    return { places, height: Math.max(y, 60) + axis };
  }

  draw() {
    const { canvas, context: c } = this;
    const { places, height } = this.#layout();
    this.places = places;
    const width = $("canvas-box").clientWidth;
    if (width <= 0) return;
    const scale = Math.min(devicePixelRatio || 1, 3);
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    c.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(canvas);
    const ink = style.getPropertyValue("--ink").trim();
    const quiet = style.getPropertyValue("--quiet").trim();
    const line = style.getPropertyValue("--line").trim();
    const ground = style.getPropertyValue("--panel").trim();
    const bad = style.getPropertyValue("--bad").trim();
    c.clearRect(0, 0, width, height);
    if (!this.paused) this.edge = performance.now() * 1000 + this.offset - delayUs;
    const left = width < 520 ? 64 : 112;
    const spanUs = this.span * 1e6;
    const from = this.edge - spanUs;
    const x = (us) => left + ((us - from) / spanUs) * (width - left);
    this.scale = { left, from, spanUs, width };

    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    this.#drawAxis({ c, x, left, from, width, height, line, quiet });
    for (const place of places) {
      c.fillStyle = place.row ? quiet : ink;
      c.font = place.row ? "10px system-ui, sans-serif" : "600 11px system-ui, sans-serif";
      const text = place.row ? place.row.name : place.title;
      if (place.row) {
        if (place.height >= 9) c.fillText(text, 8, place.y + place.height / 2, left - 12);
        c.fillStyle = line;
        c.globalAlpha = 0.5;
        c.fillRect(left, place.y, width - left, place.height);
        c.globalAlpha = 1;
      } else {
        c.fillText(text, 0, place.y + place.height / 2 + 2, width);
      }
    }
    const where = new Map(places.filter((place) => place.row).map((place) => [place.row, place]));
    c.save();
    c.beginPath();
    c.rect(left, 0, width - left, height);
    c.clip();
    // What runs beyond the edge, as far as it is known.
    for (const action of this.track.running()) {
      const place = where.get(action.row);
      if (!place || this.paused) continue;
      const begin = Math.max(action.earliest_us ?? 0, action.row.ends[0]);
      if (begin >= this.edge) continue;
      c.globalAlpha = 0.35;
      c.fillStyle = colour(this.place(action.model), this.dark.matches);
      c.fillRect(x(begin), place.y, width - x(begin), place.height);
      c.globalAlpha = 1;
    }
    // From the newest back; actions are told soon after they have ended.
    const { bars } = this.track;
    for (let i = bars.length - 1; i >= 0 && bars[i].told >= from - 1e6; --i) {
      const bar = bars[i];
      if (bar.end < from || bar.begin > this.edge) continue;
      const place = where.get(bar.row);
      if (!place) continue;
      this.#drawBar({ c, x, bar, place, ground, ink, bad });
    }
    c.restore();
  }

  #box(bar, place, x) {
    const lane = place.height / bar.row.lanes;
    const x0 = x(bar.begin);
    return { x0, width: Math.max(1, x(bar.end) - x0), y: place.y + bar.lane * lane, height: Math.max(1, lane - (bar.row.lanes > 1 ? 1 : 0)) };
  }

  #drawBar({ c, x, bar, place, ground, ink, bad }) {
    const { x0, width, y, height } = this.#box(bar, place, x);
    const good = bar.status === "success";
    c.fillStyle = colour(this.place(bar.model), this.dark.matches);
    c.globalAlpha = good ? 1 : 0.45;
    // A hairline of ground between neighbours.
    c.fillRect(x0, y, width > 3 ? width - 1 : width, height);
    c.globalAlpha = 1;
    if (!good) {
      c.strokeStyle = bad;
      c.lineWidth = 1.5;
      c.strokeRect(x0 + 0.75, y + 0.75, Math.max(1, width - 1.5), Math.max(1, height - 1.5));
    }
    if (bar.predicted > 0 && height >= 8 && width > 2) {
      const end = x(bar.begin + bar.predicted);
      c.fillStyle = ink;
      c.globalAlpha = 0.75;
      c.fillRect(x0, y + height - 2, Math.max(1, end - x0), 1.5);
      c.globalAlpha = 1;
    }
    if (bar.batch > 0 && bar.row.executor === "EXEC" && width > 14 && height >= 12) {
      c.fillStyle = ground;
      c.font = "600 10px system-ui, sans-serif";
      c.textAlign = "center";
      c.fillText(String(bar.batch), x0 + width / 2, y + height / 2 - 0.5, width - 4);
      c.textAlign = "left";
    }
    if (this.selected === bar) {
      c.strokeStyle = ink;
      c.lineWidth = 2;
      c.strokeRect(x0 - 1, y - 1, width + 2, height + 2);
    }
  }

  #drawAxis({ c, x, left, from, width, height, line, quiet }) {
    const step = this.span <= 2 ? 0.25 : this.span <= 5 ? 1 : this.span <= 15 ? 2 : 5;
    const every = width < 520 ? 2 : 1;
    c.textAlign = "center";
    for (let ago = 0, i = 0; ago <= this.span + 1e-9; ago += step, ++i) {
      const at = Math.round(x(this.edge - ago * 1e6)) - (ago === 0 ? 1 : 0);
      if (at < left) break;
      c.fillStyle = line;
      c.fillRect(at, 0, 1, height - axis);
      c.fillStyle = quiet;
      c.textAlign = ago === 0 ? "right" : "center";
      if (i % every === 0) c.fillText(ago === 0 ? "now" : `−${ago} s`, at, height - axis / 2);
    }
    c.textAlign = "left";
  }

  // --- Pointing and keys

  #at(px, py) {
    if (!this.scale) return null;
    const { left, from, spanUs, width } = this.scale;
    const place = this.places.find((p) => p.row && py >= p.y - 1 && py <= p.y + p.height + 1);
    if (!place || px < left) return null;
    const x = (us) => left + ((us - from) / spanUs) * (width - left);
    const index = findLast(this.track.bars, (bar) => {
      if (bar.row !== place.row) return false;
      const box = this.#box(bar, place, x);
      return px >= box.x0 - 2 && px <= box.x0 + box.width + 2 && py >= box.y - 1 && py <= box.y + box.height + 1;
    });
    return index < 0 ? null : this.track.bars[index];
  }

  #point(event) {
    const bar = this.#at(event.offsetX, event.offsetY);
    this.selected = bar;
    if (!bar) return this.#hide();
    this.#show(bar, event.offsetX, event.offsetY);
    if (this.paused || this.still.matches) this.draw();
  }

  #show(bar, px, py) {
    const [name, version] = bar.model.split("\n");
    const what = executorText[bar.row.executor] + (bar.cls && bar.cls !== "normal" ? `, ${classText(bar.cls)}` : "");
    this.tip.replaceChildren(
      element("b", {}, name || "a model that is new"),
      ` version ${version}`,
      element("br"),
      `${what}${bar.batch ? `, batch of ${bar.batch}` : ""}: ${microseconds(bar.end - bar.begin)}`,
      ...(bar.predicted ? [element("br"), `expected ${microseconds(bar.predicted)}`] : []),
      ...(bar.status === "success" ? [] : [element("br"), `ended as ${bar.status.replaceAll("_", " ")}`]),
    );
    this.tip.hidden = false;
    const box = $("canvas-box");
    const beside = px + 14 + this.tip.offsetWidth > box.clientWidth ? px - 14 - this.tip.offsetWidth : px + 14;
    this.tip.style.left = `${Math.max(0, beside)}px`;
    this.tip.style.top = `${py + 14}px`;
  }

  #hide() {
    if (this.tip.hidden && !this.selected) return;
    this.tip.hidden = true;
    this.selected = null;
    if (this.paused || this.still.matches) this.draw();
  }

  #press(event) {
    const step = Number($("zoom").value);
    switch (event.key) {
      case " ":
        this.pause(!this.paused);
        break;
      case "+":
      case "=":
        this.zoom(step - 1);
        break;
      case "-":
      case "−":
        this.zoom(step + 1);
        break;
      case "ArrowLeft":
      case "ArrowRight":
        this.#walk(event.key === "ArrowLeft" ? -1 : 1);
        break;
      case "Escape":
        this.#hide();
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  // From one execution or load to the next; it stands still meanwhile.
  #walk(by) {
    if (!this.paused) this.pause(true);
    const shown = this.track.bars.filter((bar) => bar.end >= this.edge - this.span * 1e6 && bar.begin <= this.edge && (bar.row.executor === "EXEC" || bar.row.executor === "LOAD"));
    if (shown.length === 0) return setText($("told"), "There is nothing here.");
    const at = shown.indexOf(this.selected);
    const next = at < 0 ? (by < 0 ? shown.length - 1 : 0) : Math.min(shown.length - 1, Math.max(0, at + by));
    const bar = shown[next];
    const place = this.places.find((p) => p.row === bar.row);
    this.selected = bar;
    this.draw();
    if (place) {
      const { left, from, spanUs, width } = this.scale;
      this.#show(bar, left + ((bar.begin - from) / spanUs) * (width - left), place.y + place.height);
    }
    setText($("told"), `Device ${bar.row.device}, ${bar.row.name}: ${this.tip.textContent}`);
  }
}
