// The KV cache block by block: who holds a block, how full it is, what is shared, wasted, or free but findable.
//
// A trace names a block table when it changes, so a hold is the time between two changes. Which free blocks the next
// prompt could still find follows from the rules of kv_cache/prefix.py: full blocks are registered when their step is
// over, and of two equal ones the first stands.

const DRAW_ALL = 96;

/** The last entry of a list in order whose key is at most `limit`. */
function lastUpTo(entries, limit, key) {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(entries[middle]) <= limit) low = middle + 1; else high = middle;
  }
  return entries[low - 1];
}

class Blocks {
  constructor(run) {
    this.run = run;
    this.size = run.blockSize;
    this.holds = run.lives.flatMap((life) => this.holdsOf(life)).sort((a, b) => a.first - b.first || a.life - b.life);
    this.idle = run.config.enable_prefix_caching ? this.idleTimes() : [];
    const highest = this.holds.reduce((most, hold) => Math.max(most, hold.block), -1);
    this.total = run.config.num_blocks || highest + 1;
    // A large pool is mostly blank, and its allocator spreads requests out: then only what was ever held is drawn.
    const ever = [...new Set(this.holds.map((hold) => hold.block))].sort((a, b) => a - b);
    this.shown = this.total <= DRAW_ALL ? Array.from({ length: this.total }, (_, block) => block) : ever;
    this.placeOf = new Map(this.shown.map((block, place) => [block, place]));
  }

  holdsOf(life) {
    const holds = [];
    let since = [];
    for (const [step, blocks] of [...life.tables, [this.run.steps.length, []]]) {
      let same = 0;
      while (same < since.length && same < blocks.length && since[same][0] === blocks[same]) same += 1;
      since.slice(same).forEach(([block, first], i) => {
        if (first < step) holds.push({ block, life: life.index, place: same + i, first, last: step - 1 });
      });
      since = [...since.slice(0, same), ...blocks.slice(same).map((block) => [block, step])];
    }
    return holds;
  }

  /** Positions of a request that are in the cache when a step is over. */
  computedAt(life, step) {
    const work = lastUpTo(life.work, step, (one) => one.step);
    const admission = life.admitted.findLast(([at]) => at <= step) ?? [-1, 0];
    return work && work.step >= admission[0] ? work.first + work.count : admission[1];
  }

  used(place, computed) {
    return Math.max(0, Math.min(computed - place * this.size, this.size));
  }

  /** Registered blocks that no table holds, from when to when. */
  idleTimes() {
    const byStep = (holds, key) => {
      const map = new Map();
      for (const hold of holds) map.get(key(hold))?.push(hold) ?? map.set(key(hold), [hold]);
      return map;
    };
    const starts = byStep(this.holds, (hold) => hold.first);
    const ends = byStep(this.holds, (hold) => hold.last + 1);
    const state = { keyOf: new Map(), blockOf: new Map(), numbers: new Map(), chains: new Map() };
    const held = new Map();
    const since = new Map();
    const found = [];
    for (const step of this.run.steps) {
      for (const hold of ends.get(step.index) ?? []) {
        held.set(hold.block, held.get(hold.block) - 1);
        if (!held.get(hold.block) && state.keyOf.has(hold.block)) since.set(hold.block, step.index);
      }
      for (const hold of starts.get(step.index) ?? []) {
        if (since.has(hold.block)) {
          const first = since.get(hold.block);
          since.delete(hold.block);
          if (first < step.index) found.push({ block: hold.block, first, last: step.index - 1 });
          const admission = this.run.lives[hold.life].admitted.findLast(([at]) => at <= hold.first);
          if (hold.place * this.size >= (admission?.[1] ?? 0)) this.forget(state, hold.block);
        }
        held.set(hold.block, (held.get(hold.block) ?? 0) + 1);
      }
      for (const work of step.seqs) this.register(state, work);
    }
    for (const [block, first] of since) found.push({ block, first, last: this.run.steps.length - 1 });
    return found;
  }

  /** Blocks that became full with this work can be found from now on, unless equal ones can already. */
  register(state, work) {
    const life = this.run.lives[work.life];
    const blocks = lastUpTo(life.tables, work.step, ([step]) => step)?.[1] ?? [];
    const full = Math.min(Math.floor((work.first + work.count) / this.size), blocks.length);
    const chain = state.chains.get(life.index) ?? state.chains.set(life.index, []).get(life.index);
    for (let place = chain.length; place < full; place += 1) {
      const ids = [];
      for (let i = place * this.size; i < (place + 1) * this.size; i += 1) {
        ids.push(i < life.prompt.length ? life.prompt[i] : life.tokens[i - life.prompt.length]);
      }
      const name = `${place ? chain[place - 1] : -1}:${ids.join()}`;
      if (!state.numbers.has(name)) state.numbers.set(name, state.numbers.size);
      chain.push(state.numbers.get(name));
    }
    for (let place = Math.floor(work.first / this.size); place < full; place += 1) {
      if (!state.blockOf.has(chain[place]) && !state.keyOf.has(blocks[place])) {
        state.blockOf.set(chain[place], blocks[place]);
        state.keyOf.set(blocks[place], chain[place]);
      }
    }
  }

  forget(state, block) {
    state.blockOf.delete(state.keyOf.get(block));
    state.keyOf.delete(block);
  }

  /** Every block that is not blank while a step runs, with what is in it when the step ends. */
  at(step) {
    const cells = new Map();
    const computed = new Map(); // by request, since one holds many blocks
    for (const hold of this.holds) {
      if (hold.first > step) break;
      if (hold.last < step) continue;
      const cell = cells.get(hold.block) ?? cells.set(hold.block, { owners: [], used: 0, idle: false }).get(hold.block);
      cell.owners.push(hold.life);
      if (!computed.has(hold.life)) computed.set(hold.life, this.computedAt(this.run.lives[hold.life], step));
      cell.used = Math.max(cell.used, this.used(hold.place, computed.get(hold.life)));
    }
    for (const free of this.idle) {
      if (free.first <= step && step <= free.last && !cells.has(free.block)) {
        cells.set(free.block, { owners: [], used: this.size, idle: true });
      }
    }
    return cells;
  }

  /** The map in numbers. `saved`: blocks that there would have to be more without sharing. */
  usage(cells) {
    const held = [...cells.values()].filter((cell) => !cell.idle);
    const written = sum(held.map((cell) => cell.used));
    return {
      held: held.length, idle: cells.size - held.length, written, wasted: held.length * this.size - written,
      shared: held.filter((cell) => cell.owners.length > 1).length,
      saved: sum(held.map((cell) => cell.owners.length - 1)),
    };
  }
}
