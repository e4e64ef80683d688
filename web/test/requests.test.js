import assert from "node:assert/strict";
import test from "node:test";
import { asked, requestLink, requestsLink } from "../src/requests.js";

test("links lead to what they were made of", () => {
  for (const id of [7, "frame 17", "<img src=x>", "a&b#c%/?"]) assert.deepEqual(asked(requestLink(id)), { id: String(id) });
  assert.deepEqual(asked(requestsLink({ reason: "deadline_passed" })).query, { reason: "deadline_passed" });
  assert.deepEqual(asked(requestsLink({ reason: "overloaded" })).query, { reason: "shed" });
  assert.deepEqual(asked(requestsLink({ reason: "late" })).query, { outcome: "late" });
  assert.deepEqual(asked(requestsLink({ model: "a&b c+d", reason: "all" })).query, { model: "a&b c+d", outcome: "refused" });
  assert.deepEqual(asked("#requests?").query, {});
  for (const other of ["", "#models", "#request", "#requests", "#request=%zz"]) assert.equal(asked(other), null);
});
