// Numbers and names as people read them. Pure.

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 60_000) return `${(ms / 60_000).toFixed(1)} min`;
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms >= 100) return `${ms.toFixed(0)} ms`;
  if (ms >= 10) return `${ms.toFixed(1)} ms`;
  if (ms >= 0.1) return `${ms.toFixed(2)} ms`;
  return `${(ms * 1000).toFixed(0)} µs`;
}

// A bound that somebody chose: 80 ms, not 80.0 ms.
export const bound = (ms) => milliseconds(ms).replace(/\.0+ /, " ");

export const microseconds = (us) => milliseconds(us === null || us === undefined ? null : us / 1000);

export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return `${m} min ${s % 60} s`;
  return `${s} s`;
}

// What rounds to all is not all: 99.996% is shown as 99.99%.
export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share === 1) return "100%";
  const p = share * 100;
  const digits = p >= 100 ? 0 : p >= 99 ? 2 : p >= 10 ? 1 : p > 0 ? 2 : 0;
  const scale = 10 ** digits;
  return `${(Math.floor(p * scale + 1e-9) / scale).toFixed(digits)}%`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function count(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, " ");
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; ++unit) n /= 1024;
  const digits = unit === 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return `${n.toFixed(digits).replace(/\.0+$/, "")} ${units[unit]}`;
}

const reasons = {
  cannot_finish: "could not be on time",
  deadline_passed: "others went first",
  rejected_late: "missed its start",
  device_failed: "device failed",
  no_device: "no device",
  no_model: "model went",
  overloaded: "overloaded",
  no_time_to_decide: "too near its deadline",
  // Of single requests (docs/explain.md):
  shed: "overloaded",
  too_near: "too near its deadline",
  size: "no plan for its size in time",
  queue_policy: "its model's queue is full",
  sequence: "no place for its sequence",
  bad_data: "bad data",
  not_serving: "not serving",
  full: "server full",
  client_gone: "client went",
};
export const reasonText = (reason) => reasons[reason] ?? String(reason).replaceAll("_", " ");

const classes = { real_time: "real-time", best_effort: "best effort", normal: "normal" };
export const classText = (cls) => classes[cls] ?? String(cls);

// A colour for the model at this place of the sorted list: neighbours differ, and the same list has the same ones.
const palette = [211, 28, 152, 268, 340, 186, 52, 98, 304, 8];
export function colour(place, dark) {
  if (place < 0) return dark ? "hsl(0 0% 55%)" : "hsl(0 0% 60%)";
  const hue = place < palette.length ? palette[place] : (place * 137.508) % 360;
  return dark ? `hsl(${hue} 52% 62%)` : `hsl(${hue} 58% 48%)`;
}
