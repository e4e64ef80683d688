import assert from "node:assert/strict";
import test from "node:test";
import { areas, floorOf, rateOf, roundUp, Samples, shareLine, shareOf } from "../src/samples.js";

const fields = ["end_s", "seconds", "on_time", "late", "refused", "cancelled", "failed", "invalid", "exec_share", "load_share", "resident_bytes"];
const sample = (end, more = {}) => fields.map((field) => ({ end_s: end, seconds: 10, ...more })[field] ?? 0);
const answer = (now, next, ...samples) => ({ started_us: 1, now_s: now, next: String(next), fields, samples });

test("samples are added, and an hour of them is kept", () => {
  const samples = new Samples();
  for (let i = 1; i <= 500; ++i) samples.take(answer(i * 10, i, sample(i * 10, { on_time: i })));
  assert.equal(samples.next, "500");
  assert.equal(samples.list.length, 361); // the oldest ended an hour ago
  assert.equal(samples.list.at(-1).on_time, 500);
  samples.take({ ...answer(20, 1, sample(10)), started_us: 2 });
  assert.equal(samples.list.length, 1, "another server's");
});

test("what was at a time is found", () => {
  const samples = new Samples();
  samples.take(answer(34, 3, sample(10, { on_time: 1 }), sample(20, { on_time: 2 }), sample(30, { on_time: 3 })));
  assert.equal(samples.at(4).on_time, 3);
  assert.equal(samples.at(15).on_time, 2);
  assert.equal(samples.at(2), undefined, "it is not told yet");
  assert.equal(samples.at(1000), undefined);
});

test("shares are of those that had to be on time", () => {
  const samples = new Samples();
  samples.take(answer(10, 1, sample(10, { on_time: 80, late: 5, refused: 10, failed: 9, invalid: 4, cancelled: 3 })));
  assert.equal(shareOf(samples.list[0]), 0.8);
  assert.equal(rateOf(samples.list[0]), 10.7);
  samples.take(answer(20, 2, sample(20)));
  assert.equal(shareOf(samples.list[1]), null);
});

test("longer spans are sums, the newest first", () => {
  const samples = new Samples();
  samples.take(answer(600, 60, ...Array.from({ length: 60 }, (_, i) => sample((i + 1) * 10, { on_time: 1, exec_share: i < 30 ? 0.5 : 0.25 }))));
  const spans = samples.spans(300);
  assert.deepEqual(spans.map((span) => [span.on_time, span.seconds, span.exec_share]), [[30, 300, 0.25], [30, 300, 0.5]]);
});

test("axes end at numbers that are easy to read", () => {
  for (const [value, end] of [[0, 1], [0.35, 0.4], [1, 1], [1.1, 1.5], [4.2, 5], [70, 80], [204, 250], [1000, 1000]]) assert.equal(Math.round(roundUp(value) * 1e6) / 1e6, end);
  for (const [least, floor] of [[1, 0.999], [0.995, 0.99], [0.97, 0.95], [0.6, 0.5], [0.2, 0]]) assert.equal(floorOf(least), floor);
});

test("areas lie on each other, and lines have gaps where nothing came", () => {
  const samples = new Samples();
  assert.deepEqual(areas(samples).paths, ["", "", ""]);
  assert.equal(shareLine(samples).path, "");
  samples.take(answer(30, 3, sample(10, { on_time: 50, refused: 50 }), sample(20), sample(30, { on_time: 100 })));
  const { most, paths } = areas(samples);
  assert.equal(most, 10);
  assert.ok(paths[0].startsWith("M3240.0 50.00L3360.0 50.00L3360.0 100.00L"), paths[0]);
  assert.ok(paths[2].startsWith("M3240.0 0.00L3360.0 0.00L"), paths[2]);
  const { floor, path } = shareLine(samples);
  assert.equal(floor, 0.5);
  assert.equal(path, "M3240.0 100.00L3360.0 100.00M3480.0 0.00L3600.0 0.00");
});

test("what is drawn is as long as what is known, or an hour", () => {
  const samples = new Samples();
  assert.equal(samples.span(), 300);
  for (const [seconds, span] of [[290, 300], [310, 900], [1000, 1800], [2000, 3600], [9000, 3600]]) {
    samples.clear();
    for (let end = 10; end <= seconds; end += 10) samples.take(answer(end, end / 10, sample(end)));
    assert.equal(samples.span(), span, String(seconds));
  }
});
