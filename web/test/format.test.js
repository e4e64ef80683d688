import assert from "node:assert/strict";
import test from "node:test";
import { bound, bytes, colour, count, duration, milliseconds, percent, rate, reasonText } from "../src/format.js";

test("times are as long as they are", () => {
  for (const [ms, text] of [[null, "–"], [undefined, "–"], [0.0123, "12 µs"], [0.5, "0.50 ms"], [12.34, "12.3 ms"], [345.6, "346 ms"], [1234, "1.23 s"], [12345, "12.3 s"], [90_000, "1.5 min"]])
    assert.equal(milliseconds(ms), text);
  for (const [s, text] of [[-1, "0 s"], [59.9, "59 s"], [61, "1 min 1 s"], [7300, "2 h 1 min"], [200_000, "2 d 7 h"]]) assert.equal(duration(s), text);
});

test("bounds are as they were chosen", () => {
  for (const [ms, text] of [[80, "80 ms"], [150, "150 ms"], [0.5, "0.50 ms"], [12.5, "12.5 ms"], [2000, "2 s"]]) assert.equal(bound(ms), text);
});

test("what is not all is never shown as all", () => {
  for (const [share, text] of [[null, "–"], [1, "100%"], [0.99999, "99.99%"], [0.5, "50.0%"], [0.05, "5.00%"], [0, "0%"], [4.575, "457%"]]) assert.equal(percent(share), text);
});

test("counts, rates and sizes", () => {
  assert.equal(count(1234567), "1 234 567");
  assert.equal(count(999), "999");
  assert.equal(rate(null), "–");
  assert.equal(rate(1.234), "1.23");
  assert.equal(rate(1234.5), "1235");
  for (const [n, text] of [[0, "0 B"], [1000, "1000 B"], [1536, "1.50 KiB"], [64 * 2 ** 20, "64 MiB"], [2 ** 30, "1 GiB"], [16.5 * 2 ** 30, "16.5 GiB"], [2 ** 52, "4096 TiB"]]) assert.equal(bytes(n), text);
});

test("reasons that are new are told as they are", () => {
  assert.equal(reasonText("cannot_finish"), "could not be on time");
  assert.equal(reasonText("some_new_thing"), "some new thing");
});

test("neighbours differ in colour, and any number has one", () => {
  for (let i = 0; i < 100; ++i) assert.notEqual(colour(i, false), colour(i + 1, false));
  assert.match(colour(-1, true), /^hsl\(/);
});
