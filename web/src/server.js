// What is asked of the server. The key stays in this object, and in this tab's session storage where its owner says so.

export class Refused extends Error {
  constructor(status, message, wait) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

const stored = "carillon-key";
const longest = 10_000; // milliseconds that an answer may take

export class Server {
  constructor() {
    this.key = "";
    try {
      this.key = sessionStorage.getItem(stored) ?? "";
    } catch {
      // No storage: the key is typed again.
    }
  }

  useKey(key, keep) {
    this.key = key;
    try {
      if (keep && key) sessionStorage.setItem(stored, key);
      else sessionStorage.removeItem(stored);
    } catch {
      // Likewise.
    }
  }

  // The JSON of the answer, or null for an empty one. Throws Refused for what the server refuses, and another error
  // where it cannot be reached.
  async ask(path, { post, patience = longest } = {}) {
    const headers = {};
    if (this.key) {
      if (!/^[\x21-\x7e]+$/.test(this.key)) throw new Refused(401, "a key is made of letters, digits and signs without spaces", 0);
      headers.Authorization = `Bearer ${this.key}`;
    }
    const response = await fetch(path, {
      method: post ? "POST" : "GET",
      headers,
      body: post ? "{}" : undefined,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(patience),
    });
    const text = await response.text();
    let json = null;
    try {
      json = text ? JSON.parse(text) : null;
    } catch {
      throw new Refused(response.status, "the answer is not JSON: is this the server’s own port?", 0);
    }
    if (!response.ok) throw new Refused(response.status, String(json?.error ?? response.statusText), Number(response.headers.get("Retry-After") ?? 0));
    return json;
  }

  status(query) { return this.ask(`/v2/carillon/status?${new URLSearchParams(query)}`.replaceAll("+", "%20")); }
  trend(since) { return this.ask(`/v2/carillon/trend${since ? `?since=${encodeURIComponent(since)}` : ""}`); }
  timeline(since) { return this.ask(`/v2/carillon/timeline${since ? `?since=${encodeURIComponent(since)}` : ""}`); }
  requests(query) { return this.ask(`/v2/carillon/requests?${new URLSearchParams({ ...query, limit: 50 })}`.replaceAll("+", "%20")); }
  request(id) { return this.ask(`/v2/carillon/requests/${encodeURIComponent(id)}`); }
  // Loading reads, compiles and measures: it may take minutes.
  load(model) { return this.ask(`/v2/repository/models/${encodeURIComponent(model)}/load`, { post: true, patience: 1_800_000 }); }
  unload(model) { return this.ask(`/v2/repository/models/${encodeURIComponent(model)}/unload`, { post: true, patience: 1_800_000 }); }
}
