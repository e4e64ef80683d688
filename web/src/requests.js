// The last requests, and the steps of one.
import { $, element, setText } from "./dom.js";
import { bound, classText, microseconds, reasonText } from "./format.js";

const mostSteps = 200;
const mostText = 60;

const outcomes = { on_time: "on time", late: "late", refused: "refused", cancelled: "cancelled", failed: "failed", open: "open" };

function clock(unixUs) {
  if (!unixUs) return "–";
  const at = new Date(unixUs / 1000);
  return `${at.toLocaleTimeString([], { hour12: false })}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

function outcomeText(request) {
  const outcome = outcomes[request.outcome] ?? String(request.outcome);
  return request.reason ? `${outcome}: ${reasonText(request.reason)}` : outcome;
}

const outcomeClass = (request) => (request.outcome === "on_time" ? "good" : request.outcome === "open" || request.outcome === "cancelled" ? "" : "bad");

// The steps as bars over the time from arrival to the answer, or the deadline where that is later.
function steps(request) {
  const list = [...(request.steps ?? []), ...(request.after ?? [])].slice(0, mostSteps);
  const ends = list.map((step) => step.end_us ?? step.begin_us ?? 0);
  const most = Math.max(1, request.took_us ?? 0, ...ends, request.deadline_us !== null && request.deadline_us < 4 * Math.max(1, ...ends, request.took_us ?? 0) ? request.deadline_us : 0);
  const at = (us) => `${Math.min(100, (us / most) * 100)}%`;
  const body = element("tbody");
  for (const step of list) {
    const begin = step.begin_us ?? 0;
    const end = Math.max(begin, step.end_us ?? begin);
    const bar = element("i", { class: `step ${["exec", "input", "output", "load"].includes(step.what) ? "works" : step.what === "busy" ? "others" : ""}` });
    bar.style.left = at(begin);
    bar.style.width = `max(2px, ${((end - begin) / most) * 100}%)`;
    const track = element("div", { class: "steps" }, bar);
    if (request.deadline_us !== null && request.deadline_us !== undefined && request.deadline_us <= most) {
      const deadline = element("i", { class: "slo", title: "deadline" });
      deadline.style.left = at(request.deadline_us);
      track.append(deadline);
    }
    body.append(element("tr", {},
      element("th", { scope: "row" }, String(step.what)),
      element("td", { class: "track", "aria-hidden": "true" }, track),
      element("td", { class: "num" }, microseconds(begin)),
      element("td", { class: "num" }, microseconds(end - begin)),
      element("td", { class: "wrap" }, [step.device !== null && step.device !== undefined ? `device ${step.device}` : "", step.note ?? ""].filter(Boolean).join(": "))));
  }
  return element("div", { class: "scroll" }, element("table", { class: "explained" },
    element("caption", { class: "sr" }, "What it waited for and what was done"),
    element("thead", {}, element("tr", {}, ...["Step", "", "After", "Took", ""].map((text, i) => element("th", { scope: "col", class: i === 2 || i === 3 ? "num" : undefined }, text)))),
    body));
}

function explained(request) {
  const pairs = [
    ["Outcome", outcomeText(request)],
    ["Took", microseconds(request.took_us)],
    ["Deadline", request.deadline_us === null || request.deadline_us === undefined ? "none" : bound(request.deadline_us / 1000)],
    ["Arrived", clock(request.arrived_unix_us)],
    ["Class", classText(request.class)],
    ["Batch", request.batch ? String(request.batch) : "–"],
    ["Device", request.device === null || request.device === undefined ? "–" : String(request.device)],
    ["Expected", microseconds(request.predicted_us)],
  ];
  if (request.would_take_us !== null && request.would_take_us !== undefined) pairs.push(["It would have taken", microseconds(request.would_take_us)]);
  if (request.id) pairs.push(["Id", request.id]);
  if (request.application) pairs.push(["Application", request.application]);
  return [
    element("h3", {}, `Request ${request.number}: ${request.model} v${request.version} `, element("span", { class: `pill ${outcomeClass(request)}` }, outcomes[request.outcome] ?? String(request.outcome))),
    element("dl", { class: "facts" }, ...pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    ...(Array.isArray(request.story) && request.story.length > 0 ? [element("p", { class: "story" }, request.story.slice(0, mostText).join(" "))] : []),
    steps(request),
  ];
}

export class Requests {
  constructor(server) {
    this.server = server;
    this.asked = 0; // the newest question's number: an older one's answer is not shown
    $("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const id = $("request").value.trim();
      if (id) this.explain(id);
    });
    $("list").addEventListener("click", () => this.list());
  }

  async explain(id) {
    const mine = ++this.asked;
    const show = (...what) => mine === this.asked && $("explained").replaceChildren(...what);
    try {
      show(...explained(await this.server.request(id)));
    } catch (error) {
      show(element("p", { class: "bad-text" }, error.status === 404 ? `Nothing is kept of a request ${id}: ${error.message}` : error.message));
    }
  }

  async list() {
    $("list").disabled = true;
    try {
      const answer = await this.server.requests();
      const requests = (Array.isArray(answer) ? answer : answer.requests ?? []).slice(0, 50);
      $("requests").tBodies[0].replaceChildren(...requests.map((request) => {
        const button = element("button", { type: "button", class: "link", "aria-label": `Explain request ${request.number}` }, String(request.number));
        button.addEventListener("click", () => {
          $("request").value = String(request.number);
          this.explain(request.number);
          $("explained").scrollIntoView({ block: "nearest" });
        });
        return element("tr", {},
          element("th", { scope: "row" }, button, " ", element("small", {}, request.id ?? "")),
          element("td", { "data-label": "Model" }, request.model),
          element("td", { "data-label": "Class" }, classText(request.class)),
          element("td", { "data-label": "Arrived" }, clock(request.arrived_unix_us)),
          element("td", { "data-label": "Outcome" }, element("span", { class: `pill ${outcomeClass(request)}` }, outcomeText(request))),
          element("td", { "data-label": "Took", class: "num" }, microseconds(request.took_us)),
          element("td", { "data-label": "Deadline", class: "num" }, request.deadline_us === null || request.deadline_us === undefined ? "–" : bound(request.deadline_us / 1000)),
          element("td", { "data-label": "Batch", class: "num" }, request.batch ? String(request.batch) : "–"));
      }));
      $("requests").hidden = false;
      setText($("list"), "Show the last again");
      if (requests.length === 0) $("explained").replaceChildren(element("p", { class: "quiet" }, "There were no requests yet."));
    } catch (error) {
      $("explained").replaceChildren(element("p", { class: "bad-text" }, error.status === 404 ? "This server keeps no requests." : error.message));
    } finally {
      $("list").disabled = false;
    }
  }
}
