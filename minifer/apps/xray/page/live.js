// The live page: the server's trace as it grows, and a box to ask something. Used only where the page came from a
// server; the page's policy allows it to talk to that server and to nobody else.

const KEEP_STEPS = 2000;
const REFRESH_MS = 250;

/** The data of server-sent events, one after the other. */
async function* serverEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value.replaceAll("\r\n", "\n")).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n");
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data && !lines.some((line) => line.startsWith("event: lost"))) yield data;
    }
  }
}

class Live {
  /** `show(run)` is called a few times a second while there is something new. */
  constructor(show, status) {
    Object.assign(this, { show, status, records: [], pieces: {}, asked: new Set(), due: false, replica: 0 });
  }

  headers(more = {}) {
    const key = byId("apikey").value;
    return key ? { ...more, Authorization: `Bearer ${key}` } : more;
  }

  /** Listen for ever: when the connection ends, try again a little later. */
  async listen() {
    for (let wait = 500; ; wait = Math.min(8000, wait * 2)) {
      this.line = new AbortController();
      try {
        const address = `/trace/stream?replica=${this.replica}`;
        const response = await fetch(address, { headers: this.headers(), signal: this.line.signal });
        if (response.status === 401) byId("keyrow").hidden = false;
        if (!response.ok) throw new Error(`the server said ${response.status}`);
        this.status(`Watching replica ${this.replica} of this server.`);
        wait = 500;
        for await (const data of serverEvents(response)) {
          this.take(JSON.parse(data));
        }
      } catch (error) {
        if (this.line.signal.aborted) continue;
        this.status(`Not connected (${error.message}); trying again.`);
      }
      await new Promise((resolve) => { setTimeout(resolve, wait); });
    }
  }

  /** Watch another replica, or the same one with the key that has just been typed. */
  turnTo(replica) {
    Object.assign(this, { replica, records: [] });
    this.line?.abort();
  }

  take(record) {
    if (record.kind === "header") this.records = [];
    this.records.push(record);
    if (this.records.length > 2 * KEEP_STEPS) this.records = [this.records[0], ...this.records.slice(-KEEP_STEPS)];
    if (this.due) return;
    this.due = true;
    setTimeout(() => { this.due = false; this.refresh(); }, REFRESH_MS);
  }

  refresh() {
    if (!this.records.some((record) => record.kind === "step")) return;
    const first = this.records[0];
    const header = first.kind === "header" ? first : { kind: "header", config: {}, about: {} };
    const about = { ...header.about, pieces: this.pieces };
    this.show(new Run("live", [{ ...header, about }, ...this.records.filter((record) => record.kind !== "header")]));
    this.spell();
  }

  /** Ask the server for the text of tokens that have not been seen yet, a few at a time. */
  async spell() {
    const ids = new Set(this.records.flatMap((record) => record.prompt ?? (record.tokens ?? []).map((row) => row[1])));
    const unknown = [...ids].filter((id) => id !== null && !this.asked.has(id)).slice(-64);
    unknown.forEach((id) => this.asked.add(id));
    await Promise.all(unknown.map(async (id) => {
      try {
        const body = JSON.stringify({ tokens: [id] });
        const response = await fetch("/detokenize", { method: "POST", body, headers: this.headers({ "Content-Type": "application/json" }) });
        const told = response.ok ? await response.json() : {};
        const text = told.content ?? told.prompt;
        if (text !== undefined) this.pieces[id] = text;
      } catch { /* shown by its number instead */ }
    }));
    if (unknown.length) this.refresh();
  }

  /** Send a chat message and show the answer as it comes. */
  async chat(text, log) {
    const answer = el("p", { class: "answer" });
    log.append(el("p", { class: "question" }, text), answer);
    try {
      const body = JSON.stringify({ messages: [{ role: "user", content: text }], stream: true, max_tokens: 64 });
      const response = await fetch("/v1/chat/completions", { method: "POST", body, headers: this.headers({ "Content-Type": "application/json" }) });
      if (response.status === 401) byId("keyrow").hidden = false;
      if (!response.ok) throw new Error((await response.json()).error?.message ?? `the server said ${response.status}`);
      for await (const data of serverEvents(response)) {
        if (data === "[DONE]") break;
        answer.append(JSON.parse(data).choices?.[0]?.delta?.content ?? "");
        log.scrollTop = log.scrollHeight;
      }
    } catch (error) {
      answer.append(`(${error.message})`);
    }
  }
}
