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

// Places in this page: one request's explanation, and lists of requests. `reason` is a status's, "all" any.
export const requestLink = (id) => `#request=${encodeURIComponent(id)}`;
export const requestsLink = (query) => `#requests?${new URLSearchParams(query)}`;

// The reasons of requests that a status counts as one.
const causes = { overloaded: "shed", no_time_to_decide: "too_near,size,queue_policy,sequence,full,not_serving" };

// What a place in this page asks the server for: {id}, or {query, text}; null: it is of something else.
export function asked(hash) {
  if (hash.startsWith("#request=")) {
    try {
      return { id: decodeURIComponent(hash.slice("#request=".length)) };
    } catch {
      return null;
    }
  }
  if (!hash.startsWith("#requests?")) return null;
  const given = new URLSearchParams(hash.slice("#requests?".length));
  const [model, reason] = [given.get("model"), given.get("reason")];
  const query = model ? { model } : {};
  if (reason === "late") query.outcome = "late";
  else if (reason === "all") query.outcome = "refused";
  else if (reason) query.reason = causes[reason] ?? reason;
  const what = reason === "late" ? "late" : reason === "all" ? "refused" : reason ? `“${reasonText(reason)}”` : "all";
  return { query, text: `The last: ${what}${model ? `, of ${model}` : ""}` };
}

export class Requests {
  constructor(server) {
    this.server = server;
    this.asked = 0; // the newest question's number: an older one's answer is not shown
    $("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const id = $("request").value.trim();
      if (id) this.#go(requestLink(id));
    });
    $("list").addEventListener("click", () => this.#go("#requests?"));
    addEventListener("hashchange", () => this.#show());
    // A link to where the page is already asks anew.
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.('a[href^="#request"]');
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !asked(link.hash)) return;
      event.preventDefault();
      this.#go(link.hash);
    });
    this.#show();
  }

  #go(hash) {
    if (location.hash === hash) this.#show();
    else location.hash = hash;
  }

  #show() {
    const what = asked(location.hash);
    if (what === null) return;
    if (what.id !== undefined) {
      $("request").value = what.id;
      this.explain(what.id);
    } else {
      this.list(what.query, what.text);
    }
  }

  async explain(id) {
    const mine = ++this.asked;
    const show = (...what) => {
      if (mine !== this.asked) return;
      $("explained").replaceChildren(...what);
      $("explain-form").scrollIntoView({ block: "start" });
    };
    try {
      show(...explained(await this.server.request(id)));
    } catch (error) {
      show(element("p", { class: "bad-text" }, error.status === 404 ? `Nothing is kept of a request ${id}: ${error.message}` : error.message));
    }
  }

  async list(query, text) {
    const mine = ++this.asked;
    try {
      const answer = await this.server.requests(query);
      if (mine !== this.asked) return;
      const requests = (Array.isArray(answer) ? answer : answer.requests ?? []).slice(0, 50);
      setText($("listed"), requests.length > 0 ? text : `${text}: none is kept`);
      $("requests").tBodies[0].replaceChildren(...requests.map((request) => {
        const link = element("a", { class: "link", href: requestLink(request.number), "aria-label": `Explain request ${request.number}` }, String(request.number));
        return element("tr", {},
          element("th", { scope: "row" }, link, " ", element("small", {}, request.id ?? "")),
          element("td", { "data-label": "Model" }, request.model),
          element("td", { "data-label": "Class" }, classText(request.class)),
          element("td", { "data-label": "Arrived" }, clock(request.arrived_unix_us)),
          element("td", { "data-label": "Outcome" }, element("span", { class: `pill ${outcomeClass(request)}` }, outcomeText(request))),
          element("td", { "data-label": "Took", class: "num" }, microseconds(request.took_us)),
          element("td", { "data-label": "Deadline", class: "num" }, request.deadline_us === null || request.deadline_us === undefined ? "–" : bound(request.deadline_us / 1000)),
          element("td", { "data-label": "Batch", class: "num" }, request.batch ? String(request.batch) : "–"));
      }));
      $("requests").hidden = requests.length === 0;
      $("explained").replaceChildren();
      $("explain-form").scrollIntoView({ block: "start" });
    } catch (error) {
      if (mine === this.asked) $("explained").replaceChildren(element("p", { class: "bad-text" }, error.status === 404 ? "This server keeps no requests." : error.message));
    }
  }
}
