// The actions of the last half minute, as bars in rows: what the timeline draws. Pure, and bounded in memory.

export const keptUs = 32_000_000;
export const mostBars = 30_000;
const mostLanes = 6;

const order = { LOAD: 0, INPUT: 1, EXEC: 2, OUTPUT: 3 };
const classOrder = { real_time: 0, normal: 1, best_effort: 2 };

export const modelKey = (model) => `${model.name}\n${model.version}`;

// A row of a device: an executor, EXEC by class.
function rowOf(device, executor, cls) {
  const name = executor === "EXEC" && cls && cls !== "normal" ? `EXEC ${cls === "real_time" ? "real-time" : "best effort"}` : executor;
  return { key: `${device}/${name}`, device, executor, name, rank: order[executor] * 4 + (executor === "EXEC" ? classOrder[cls] ?? 1 : 0) };
}

export class Track {
  constructor() {
    this.clear();
  }

  clear() {
    this.bars = []; // in the order in which they were told
    this.rows = new Map();
    this.open = [];
    this.next = "";
    this.started = null;
    this.nowUs = 0;
  }

  // An answer of /v2/carillon/timeline. Returns how many actions were left out of it.
  take(answer) {
    if (this.started !== null && answer.started_us !== this.started) this.clear(); // another server
    this.started = answer.started_us;
    this.next = answer.next;
    this.nowUs = answer.now_us;
    for (const action of answer.actions) this.#add(action, answer.models);
    this.open = answer.under_way.map((action) => {
      const model = answer.models[action.model] ?? { name: "", version: 0 };
      const row = this.#row(action.device, action.executor, action.class);
      return { ...action, model: modelKey(model), row };
    });
    this.#forget();
    return answer.left_out;
  }

  // Rows in the order in which they are drawn.
  sortedRows() {
    return [...this.rows.values()].sort((a, b) => a.device - b.device || a.rank - b.rank);
  }

  // Of what is under way, the first of each row: it runs, or waits for its window.
  running() {
    const first = new Map();
    for (const action of this.open) if (!first.has(action.row.key)) first.set(action.row.key, action);
    return [...first.values()];
  }

  #row(device, executor, cls) {
    const wanted = rowOf(device, executor, cls);
    let row = this.rows.get(wanted.key);
    if (!row) this.rows.set(wanted.key, (row = { ...wanted, lanes: 1, ends: [0] }));
    return row;
  }

  #add(action, models) {
    const model = modelKey(models[action.model] ?? { name: "", version: 0 });
    const told = Math.max(...[action.load, action.input, action.exec, action.output].filter(Boolean).map((span) => span[1]), 0);
    for (const [executor, span] of [["LOAD", action.load], ["INPUT", action.input], ["EXEC", action.exec], ["OUTPUT", action.output]]) {
      if (!span) continue;
      const row = this.#row(action.device, executor, action.class);
      const [begin, end] = span;
      // What overlaps lies in lanes of the row.
      let lane = row.ends.findIndex((at) => at <= begin);
      if (lane < 0 && row.ends.length < mostLanes) lane = row.ends.push(0) - 1;
      if (lane < 0) lane = row.ends.indexOf(Math.min(...row.ends));
      row.ends[lane] = Math.max(row.ends[lane], end);
      row.lanes = row.ends.length;
      const main = executor === "EXEC" || executor === "LOAD";
      this.bars.push({ row, lane, begin, end, told, model, batch: action.batch ?? 0, cls: action.class ?? "", status: action.status, predicted: main ? action.predicted_us : 0, action: action.action });
    }
  }

  #forget() {
    const oldest = this.nowUs - keptUs;
    let gone = this.bars.length > mostBars ? this.bars.length - mostBars : 0;
    while (gone < this.bars.length && this.bars[gone].end < oldest) ++gone;
    if (gone > 0) this.bars.splice(0, gone);
    if (this.rows.size > 512) this.rows.clear(); // of devices that nobody has
  }
}

// The index of the first bar, from the newest back, for which found(bar) holds; -1: none.
export function findLast(bars, found) {
  for (let i = bars.length - 1; i >= 0; --i) if (found(bars[i])) return i;
  return -1;
}

// Colours by number, given out as models come to be seen: those that do something now differ, however many there are.
export class Colours {
  constructor(most = 4096) {
    this.most = most;
    this.places = new Map();
  }
  // The model's number; -1: it has none.
  place(key) {
    return this.places.get(key) ?? -1;
  }
  // Gives it one where it has none.
  take(key) {
    let place = this.places.get(key);
    if (place === undefined) {
      if (this.places.size >= this.most) this.places.clear();
      this.places.set(key, (place = this.places.size));
    }
    return place;
  }
}
