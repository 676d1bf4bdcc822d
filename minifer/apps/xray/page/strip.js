// The tokens of one request as a strip: what was found, what prefill computed, what decode added, and what each cost.

const CHIPS = 160;

/** Tokens of a request in order: text, how it came to be, in which step, and its share of that step in ms. */
function tokensOf(run, life) {
  const rows = [];
  const prompt = life.prompt.length || (life.work[0] ? life.work[0].first + life.work[0].count : 0);
  const cached = Math.min(run.cached(life), prompt);
  const stepOf = new Array(prompt).fill(null);
  for (const work of life.work) {
    for (let at = work.first; at < Math.min(work.first + work.count, prompt); at += 1) stepOf[at] ??= work.step;
  }
  for (let at = 0; at < prompt; at += 1) {
    const step = stepOf[at];
    const text = life.prompt.length ? run.word(life.prompt[at]) : "?";
    if (at < cached) rows.push({ text, kind: "found", step: life.work[0]?.step ?? null, ms: 0, what: "found in the cache" });
    else rows.push({ text, kind: "prefill", step, ms: step === null ? null : run.steps[step].ms / run.steps[step].fed, what: "computed in prefill" });
  }
  life.tokens.forEach((token, i) => {
    const ms = i ? life.times[i] - life.times[i - 1] : run.ttft(life);
    rows.push({ text: run.word(token), kind: "decode", step: life.tokenSteps[i], ms, what: i ? "answer: gap before it" : "answer: time to the first token" });
  });
  return rows;
}

class Strip {
  constructor(place, note, goTo) {
    Object.assign(this, { place, note, goTo });
  }

  show(run, life, step) {
    const rows = this.life === life && this.counted === life.tokens.length ? this.rows : tokensOf(run, life);
    Object.assign(this, { life, counted: life.tokens.length, rows });
    const known = rows.filter((row) => row.step !== null && row.step <= step).length;
    const around = known - (CHIPS >> 1);
    const from = Math.max(0, Math.min(rows.length - CHIPS, around - around % 40));
    const shown = rows.slice(from, from + CHIPS);
    const most = Math.max(...rows.map((row) => row.ms ?? 0), 1e-9);
    if (this.drawn !== rows || this.from !== from) {
      this.chips = shown.map((row) => this.chip(row, most));
      this.place.replaceChildren(...this.chips);
      Object.assign(this, { drawn: rows, from });
    }
    this.chips.forEach((chip, i) => { chip.className = `chip ${shown[i].kind} ${this.stateOf(shown[i], step)}`; });
    work.chips = shown.length;
    const prompt = rows.filter((row) => row.kind !== "decode");
    const now = rows.filter((row) => row.step === step);
    const found = prompt.filter((row) => row.kind === "found").length;
    const cut = rows.length > CHIPS ? ` Shown are tokens ${from + 1} to ${from + shown.length} of ${rows.length}.` : "";
    this.note.textContent = `${life.id}: ${count(prompt.length, "prompt token")}${found ? `, ${found} of them found in the cache` : ""}; `
      + `${count(life.tokens.length, "token")} in the answer. `
      + (now.length ? `Step ${step + 1} worked on the outlined ${now.length === 1 ? "one" : now.length}.` : `Step ${step + 1} did nothing for it.`)
      + ` The bar under a token is its time.${cut}`;
  }

  stateOf(row, step) {
    return row.step === null || row.step > step ? "later" : row.step === step ? "now" : "done";
  }

  chip(row, most) {
    const cost = row.ms === null ? "" : duration(row.ms);
    const bar = el("span", { class: "cost" });
    bar.style.width = `${Math.max(2, 100 * (row.ms ?? 0) / most)}%`;
    const said = `${row.what}${cost ? `, ${cost}` : ""}${row.step === null ? "" : `, step ${row.step + 1}`}`;
    return el("li", { title: said },
      el("bdi", { class: "token" }, row.text), el("span", { class: "price" }, row.kind === "decode" ? cost : ""), bar,
      el("span", { class: "sr" }, `, ${said}`));
  }

  table() {
    return table("Every token, and what it cost", ["token", "text", "how", "step", "ms"],
      (this.rows ?? []).slice(0, 3000).map((row, i) => [i, el("bdi", {}, row.text), row.what, row.step === null ? "" : row.step + 1, row.ms === null ? "" : three(row.ms)]));
  }
}
