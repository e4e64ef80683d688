// What became of requests in the last hour: samples as the server tells them, and what is drawn of them. Pure, and
// bounded in memory.

export const longestS = 3600;
const mostSamples = 720;

export class Samples {
  constructor() {
    this.clear();
  }

  clear() {
    this.list = []; // the oldest first
    this.next = "";
    this.started = null;
    this.nowS = 0;
  }

  // An answer of /v2/carillon/trend.
  take(answer) {
    if (this.started !== null && answer.started_us !== this.started) this.clear(); // another server
    this.started = answer.started_us;
    this.next = answer.next;
    this.nowS = answer.now_s;
    for (const values of answer.samples) this.list.push(Object.fromEntries(answer.fields.map((field, i) => [field, values[i]])));
    while (this.list.length > mostSamples || this.list[0]?.end_s < this.nowS - longestS) this.list.shift();
  }

  // What is drawn, in seconds: an hour, or less of a server that is younger.
  span() {
    const known = this.list.length > 0 ? this.nowS - this.list[0].end_s + this.list[0].seconds : 0;
    return [300, 900, 1800].find((span) => known <= span) ?? longestS;
  }

  // The sample in which this time lay, so many seconds ago; undefined where there is none.
  at(ago) {
    const time = this.nowS - ago;
    return this.list.find((sample) => time <= sample.end_s && time > sample.end_s - sample.seconds);
  }

  // Sums over spans of so many seconds, the newest first.
  spans(seconds) {
    const out = [];
    for (const sample of this.list.toReversed()) {
      const place = Math.max(0, Math.floor((this.nowS - sample.end_s) / seconds));
      const last = out.at(-1);
      if (last?.place === place) add(last, sample);
      else out.push({ place, ...sample, exec_s: sample.exec_share * sample.seconds, load_s: sample.load_share * sample.seconds });
    }
    return out.map((sum) => ({ ...sum, exec_share: sum.exec_s / sum.seconds, load_share: sum.load_s / sum.seconds }));
  }
}

function add(sum, sample) {
  for (const field of ["seconds", "on_time", "late", "refused", "cancelled", "failed", "invalid"]) sum[field] += sample[field];
  sum.exec_s += sample.exec_share * sample.seconds;
  sum.load_s += sample.load_share * sample.seconds;
}

export const lost = (sample) => sample.refused + sample.failed - sample.invalid;
export const rateOf = (sample) => (sample.on_time + sample.late + sample.refused + sample.failed + sample.cancelled) / sample.seconds;

// Of those that had to be on time; null where there were none.
export function shareOf(sample) {
  const all = sample.on_time + sample.late + lost(sample);
  return all > 0 ? sample.on_time / all : null;
}

// A number that is easy to read, and no smaller.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * scale).find((step) => step >= value * (1 - 1e-9));
}

// The lower end of an axis of shares, so that small losses show.
export const floorOf = (least) => [0.999, 0.99, 0.95, 0.9, 0.75, 0.5].find((floor) => least >= floor) ?? 0;

// The paths of areas that lie on each other, in a box of 3600 by 100, and what its upper edge stands for.
export function areas(samples) {
  const { list } = samples;
  const values = [(s) => s.on_time / s.seconds, (s) => s.late / s.seconds, (s) => lost(s) / s.seconds];
  const most = roundUp(Math.max(0, ...list.map((s) => values.reduce((sum, value) => sum + value(s), 0))));
  const paths = values.map((_, level) => {
    const sum = (s, upTo) => values.slice(0, upTo).reduce((all, value) => all + value(s), 0);
    const upper = steps(samples, list, (s) => 100 - (sum(s, level + 1) / most) * 100);
    const lower = steps(samples, list, (s) => 100 - (sum(s, level) / most) * 100).reverse();
    return upper.length > 0 ? `M${[...upper, ...lower].join("L")}Z` : "";
  });
  return { most, paths };
}

// The line of the share that was on time; it has a gap where there were no requests.
export function shareLine(samples) {
  const { list } = samples;
  const known = list.map(shareOf).filter((share) => share !== null);
  const floor = floorOf(known.length > 0 ? Math.min(...known) : 1);
  let path = "";
  let before = null;
  for (const sample of list) {
    const share = shareOf(sample);
    const points = share === null ? [] : steps(samples, [sample], () => 100 - ((share - floor) / (1 - floor)) * 100);
    if (points.length > 0) path += `${before === null ? "M" : "L"}${points.join("L")}`;
    before = share;
  }
  return { floor, path };
}

// Both ends of each sample, as points.
function steps(samples, list, height) {
  const span = samples.span();
  return list.flatMap((s) => {
    const x = (time) => (Math.max(0, Math.min(1, 1 - (samples.nowS - time) / span)) * 3600).toFixed(1);
    const y = height(s).toFixed(2);
    return [`${x(s.end_s - s.seconds)} ${y}`, `${x(s.end_s)} ${y}`];
  });
}
