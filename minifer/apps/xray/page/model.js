// A trace's lines put together: the life of every request, what each step did, who sat where.
//
// The same as minifer/apps/view/trace_model.py, which draws figures from the same files. Times become milliseconds
// after the earliest arrival; steps and requests are counted from 0 and refer to each other by these numbers.

const LONGEST_ID = 8;

class Run {
  constructor(label, records) {
    this.label = label;
    this.config = {};
    this.about = {};
    this.lives = [];
    this.steps = [];
    this.known = new Map();
    const queued = records.filter((record) => record.kind === "request").map((record) => record.arrival);
    const first = records.find((record) => record.kind === "step");
    this.zero = queued.length ? queued.reduce((a, b) => Math.min(a, b)) : first ? first.start : 0;
    for (const record of records) this.take(record);
    this.seat();
  }

  get blockSize() { return this.config.block_size || 16; }
  get kvBytes() { return this.about.kv_bytes_per_token || 0; }
  get end() {
    return Math.max(this.steps.at(-1)?.end ?? 0, ...this.lives.slice(-64).map((life) => life.finished ?? life.arrival));
  }
  ms(seconds) { return (seconds - this.zero) * 1000; }

  take(record) {
    if (record.kind === "header") {
      this.config = record.config;
      this.about = record.about;
    } else if (record.kind === "request") {
      const life = this.born(record.id, this.ms(record.arrival), record.prompt);
      life.siblings = record.siblings;
    } else if (record.kind === "step") {
      this.takeStep(record);
    } else if (record.kind === "end") {
      const life = this.find(record.id, this.ms(record.time));
      if (life.reason === null) this.close(life, record.reason, this.ms(record.time), this.steps.length - 1);
    }
  }

  born(id, arrival, prompt) {
    // `key` is the id as recorded; `id` is what the page calls it, since a server's ids are long.
    const shown = id.length > LONGEST_ID ? `r${this.lives.length + 1}` : visible(id);
    const life = {
      index: this.lives.length, key: id, id: shown, arrival, prompt, siblings: 0, work: [], admitted: [], preempted: [], refused: [],
      tokens: [], times: [], tokenSteps: [], logprobs: [], tables: [], scheduled: null, finished: null, lastStep: null,
      reason: null,
    };
    this.lives.push(life);
    this.known.set(id, life);
    return life;
  }

  /** `id.2` of a request with siblings comes to life when it is first named; a live page may begin in the middle. */
  find(id, now) {
    if (this.known.has(id)) return this.known.get(id);
    const parent = this.known.get(id.slice(0, id.lastIndexOf(".")));
    return this.born(id, parent ? parent.arrival : now, parent ? parent.prompt : []);
  }

  takeStep(record) {
    const [running, waiting, seats, free] = record.load;
    const step = {
      index: this.steps.length, number: record.step, start: this.ms(record.start), end: this.ms(record.end), running,
      waiting, seats, free, seqs: [], admitted: [], preempted: [], refused: [], finished: [], tokens: [],
      copies: record.copies, ops: record.ops ?? null, draws: record.draws ?? {},
    };
    step.ms = step.end - step.start;
    this.steps.push(step);
    for (const [id, why] of record.preempted) this.preempt(step, id, why);
    for (const [id, found] of record.admitted) {
      const life = this.find(id, step.start);
      life.admitted.push([step.index, found]);
      step.admitted.push([life.index, found]);
    }
    for (const [id, why] of record.refused) {
      const life = this.find(id, step.start);
      life.refused.push([step.index, why]);
      step.refused.push([life.index, why]);
    }
    for (const [id, table] of Object.entries(record.tables)) this.find(id, step.start).tables.push([step.index, table]);
    for (const [id, phase, first, length, samples] of record.seqs) {
      const life = this.find(id, step.start);
      const work = { step: step.index, life: life.index, prefill: phase === "prefill", first, count: length, samples };
      life.work.push(work);
      step.seqs.push(work);
      life.scheduled ??= step.start;
    }
    for (const [id, token, logprob, reason] of record.tokens) {
      const life = this.find(id, step.start);
      if (token !== null) {
        life.tokens.push(token);
        life.times.push(step.end);
        life.tokenSteps.push(step.index);
        life.logprobs.push(logprob);
        step.tokens.push([life.index, token, life.tokens.length - 1]);
      }
      if (reason !== null) {
        step.finished.push(life.index);
        this.close(life, reason, step.end, step.index);
      }
    }
    step.fed = sum(step.seqs.map((work) => work.count));
    step.prefillTokens = sum(step.seqs.filter((work) => work.prefill).map((work) => work.count));
    step.decodes = step.seqs.filter((work) => !work.prefill).length;
  }

  preempt(step, id, why) {
    const life = this.find(id, step.start);
    life.preempted.push([step.index, why]);
    life.tables.push([step.index, []]);
    step.preempted.push([life.index, why]);
  }

  close(life, reason, now, lastStep) {
    Object.assign(life, { reason, finished: now, lastStep });
    if (life.tables.length && life.tables.at(-1)[1].length) life.tables.push([lastStep + 1, []]);
  }

  /** Who sat in which slot: whoever comes takes the lowest free one; in a closed batch it stays taken to the end. */
  seat() {
    const spans = this.lives.flatMap((life) => this.spansOf(life)).sort((a, b) => a.first - b.first || a.life - b.life);
    const closed = this.steps.some((step) => step.seats > step.running);
    const taken = []; // by slot: the last step of whoever sits there, or -1
    this.stays = [];
    for (const span of spans) {
      if (!closed || taken.every((last) => last < span.first)) {
        taken.forEach((last, slot) => { if (last < span.first) taken[slot] = -1; });
      }
      const free = taken.indexOf(-1);
      const slot = free < 0 ? taken.length : free;
      taken[slot] = span.last;
      this.stays.push({ ...span, slot });
    }
    this.slots = taken.length;
  }

  spansOf(life) {
    const starts = life.admitted.map(([step]) => step);
    if (life.work.length && (!starts.length || life.work[0].step < starts[0])) starts.unshift(life.work[0].step);
    const end = life.lastStep ?? this.steps.length - 1;
    return starts.map((first) => {
      const thrownOut = life.preempted.find(([step]) => step > first);
      return { life: life.index, first, last: Math.max(first, thrownOut ? thrownOut[0] - 1 : end) };
    });
  }

  /** The step that runs at a time, or the last one before it. */
  stepAt(ms) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.steps[middle].start <= ms) low = middle; else high = middle - 1;
    }
    return low;
  }

  piece(token) {
    const pieces = this.about.pieces;
    return pieces && Object.hasOwn(pieces, token) ? pieces[token] : null;
  }

  word(token) {
    const text = this.piece(token);
    return text === null ? `#${token}` : visible(text);
  }

  // What a request took. null is what has not happened.
  ttft(life) { return life.times.length ? life.times[0] - life.arrival : null; }
  itl(life) { return life.times.slice(1).map((time, i) => time - life.times[i]); }
  queue(life) { return life.scheduled === null ? null : life.scheduled - life.arrival; }
  cached(life) { return life.work.length ? life.work[0].first : life.admitted[0]?.[1] ?? 0; }
}
