import assert from "node:assert/strict";
import test from "node:test";
import { Colours, Track, keptUs, modelKey, mostBars } from "../src/track.js";

const models = [{ name: "a", version: 1 }];
const answer = (actions, more = {}) => ({ now_us: 1000, started_us: 1, next: "1", left_out: 0, actions, under_way: [], models, ...more });
const infer = (at, more = {}) => ({ device: 0, action: at, model: 0, batch: 2, class: "normal", predicted_us: 5, status: "success", exec: [at, at + 10], ...more });

test("an action becomes a bar for each of its steps", () => {
  const track = new Track();
  track.take(answer([infer(100, { input: [90, 95], output: [110, 112] }), { device: 1, action: 2, model: 0, predicted_us: 7, status: "no_memory", load: [50, 80] }]));
  assert.deepEqual(track.bars.map((bar) => [bar.row.key, bar.begin, bar.end, bar.predicted]), [["0/INPUT", 90, 95, 0], ["0/EXEC", 100, 110, 5], ["0/OUTPUT", 110, 112, 0], ["1/LOAD", 50, 80, 7]]);
  assert.deepEqual(track.sortedRows().map((row) => row.key), ["0/INPUT", "0/EXEC", "0/OUTPUT", "1/LOAD"]);
  assert.equal(track.bars[0].model, modelKey(models[0]));
});

test("what overlaps lies in lanes, as few as will do and not too many", () => {
  const track = new Track();
  track.take(answer([infer(0), infer(5), infer(10), infer(100)]));
  assert.deepEqual(track.bars.map((bar) => bar.lane), [0, 1, 0, 0]);
  track.take(answer(Array.from({ length: 50 }, (_, i) => infer(200 + i / 100))));
  assert.ok(track.rows.get("0/EXEC").lanes <= 6);
});

test("classes have rows of their own", () => {
  const track = new Track();
  track.take(answer([infer(0, { class: "best_effort" }), infer(0), infer(0, { class: "real_time" })]));
  assert.deepEqual(track.sortedRows().map((row) => row.name), ["EXEC real-time", "EXEC", "EXEC best effort"]);
});

test("it does not grow", () => {
  const track = new Track();
  for (let second = 0; second < 200; ++second) {
    const now = second * 1e6;
    track.take(answer(Array.from({ length: 1000 }, (_, i) => infer(now - 1e6 + i * 1000)), { now_us: now }));
    assert.ok(track.bars.length <= mostBars);
    assert.ok(track.bars[0].end >= now - keptUs);
  }
  assert.ok(track.bars.length >= 30_000 - 1000);
  for (let i = 0; i < 2000; ++i) track.take(answer([infer(1e9, { device: i })], { now_us: 1e9 }));
  assert.ok(track.rows.size <= 513);
});

test("another server begins anew", () => {
  const track = new Track();
  track.take(answer([infer(0)]));
  track.take(answer([infer(5)], { started_us: 2 }));
  assert.equal(track.bars.length, 1);
  assert.equal(track.next, "1");
});

test("the first of a row is what runs", () => {
  const track = new Track();
  const under = (action, more) => ({ device: 0, action, model: 0, batch: 1, class: "normal", predicted_us: 5, executor: "EXEC", ...more });
  track.take(answer([], { under_way: [under(1), under(2), under(3, { executor: "LOAD" })] }));
  assert.deepEqual(track.running().map((action) => action.action), [1, 3]);
});

test("colours are given to what is seen, and no more of them than may be", () => {
  const colours = new Colours(3);
  assert.equal(colours.place("a"), -1);
  assert.deepEqual(["a", "b", "a", "c"].map((key) => colours.take(key)), [0, 1, 0, 2]);
  assert.equal(colours.place("c"), 2);
  assert.equal(colours.take("d"), 0);
  assert.equal(colours.places.size, 1);
});
