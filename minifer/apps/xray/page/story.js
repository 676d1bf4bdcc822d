// The five answers in plain sentences, each computed from the run that is shown.

/** Seats, blocks, tokens: the scheduler's reason for leaving somebody in the queue, in words for newcomers. */
function plainReason(why) {
  if (why.startsWith("all 1 ")) return "a seat: the only one was taken";
  if (why.startsWith("all ")) return `a seat: ${why.replace("seats are taken", "were taken")}`;
  if (why.startsWith("blocks needed")) return `free blocks in the KV cache (${why})`;
  if (why.startsWith("tokens to compute")) return `room in a step (${why})`;
  if (why.startsWith("the batch runs")) return "the whole batch before it to end, because a static batch lets nobody in";
  return why;
}

/** What kept a request in the queue, by kind; "step" is a step under way when it came. */
function waitKind(run, life) {
  const why = life.refused[0]?.[1] ?? "";
  if (why.startsWith("all ")) return "seat";
  if (why.startsWith("blocks needed")) return "blocks";
  if (why.startsWith("tokens to compute")) return "budget";
  if (why.startsWith("the batch runs")) return "batch";
  if (why) return "other";
  const wait = run.queue(life);
  return wait !== null && wait > 1 && wait > 0.05 * (run.ttft(life) ?? wait) ? "step" : "nothing";
}

function whySecondFaster(run, life) {
  const ttft = run.ttft(life);
  if (ttft === null) return { answer: `${life.id} has no token yet.` };
  const prompt = life.prompt.length || life.work[0].count;
  const before = life.work.filter((work) => work.step <= life.tokenSteps[0]);
  const fed = sum(before.map((work) => work.count));
  const cached = run.cached(life);
  const found = cached ? ` (${count(cached, "token")} of the prompt were found in the cache)` : "";
  const queue = run.queue(life);
  const waited = queue > 0.02 * ttft ? ` after ${duration(queue)} in the queue` : "";
  const first = `The first token of ${life.id} took ${duration(ttft)}${waited}: before it could be chosen, `
    + `${count(fed, "prompt token")} had to be computed${found}, in ${count(before.length, "step")}. That is prefill.`;
  if (life.times.length < 2) return { answer: `${first} There is no second token to compare with.`, step: life.tokenSteps[0] };
  const second = life.times[1] - life.times[0];
  const compute = life.times[0] - (life.scheduled ?? 0);
  const quick = `The second took ${duration(second)}: only one new token went through the model, because the keys and `
    + `values of the ${prompt} tokens before it were waiting in the KV cache. That is decode.`;
  const ratio = compute / second;
  const times = ratio >= 1.15 ? ` ${three(ratio)} times as fast as the first, counted from the start of its computation.`
    : `${queue > 0.02 * ttft ? " Without the queue" : " In this run"} it was not faster: `
      + (run.steps[life.tokenSteps[1]].prefillTokens ? "its step also computed somebody else's prompt."
        : "so few tokens cost next to nothing; what a step costs here is the step itself.");
  return { answer: first, more: quick + times, step: life.tokenSteps[1] };
}

function whatSecondWaitedFor(run) {
  const life = run.lives[1];
  if (!life) return { answer: "There was only one request. Run the x-ray with --and \"another prompt\" to see two." };
  const queue = run.queue(life);
  if (queue === null) return { answer: `${life.id} has not been started yet.` };
  const kind = waitKind(run, life);
  const start = life.work[0].step;
  const company = run.steps[start].seqs.filter((work) => work.life !== life.index);
  if (kind === "nothing") {
    const shared = company.some((work) => work.prefill)
      ? ` It shared step ${start + 1} with ${list(company.map((work) => run.lives[work.life].id))}, so its first token `
        + `came when the prompts of all of them were computed, ${duration(run.steps[start].ms)} later.`
      : "";
    return { more: longestWait(run, life), answer: `For nobody: a seat was free and ${life.id} was let in at once, in step ${start + 1}.${shared}`, step: start };
  }
  if (kind === "step") {
    return {
      more: longestWait(run, life),
      answer: `${life.id} waited ${duration(queue)} for the step under way to end: nobody can join in the middle of a `
        + `step. It was let in with step ${start + 1}.`, step: start,
    };
  }
  const times = life.refused.length;
  return {
    answer: `${life.id} waited ${duration(queue)} for ${plainReason(life.refused[0][1])}. It stood first in the queue `
      + `and was turned away ${count(times, "time")}, until step ${start + 1}.`, step: life.refused[0][0],
  };
}

/** Who else waited, and longer. */
function longestWait(run, than) {
  const waits = run.lives.filter((life) => life.refused.length && run.queue(life) > run.queue(than));
  const life = waits.sort((a, b) => run.queue(b) - run.queue(a))[0];
  return life ? `Others did wait: ${life.id} for ${duration(run.queue(life))}, for ${plainReason(life.refused[0][1])}.` : null;
}

function promptMemory(run, blocks, life) {
  const entry = life.tables.find(([, held]) => held.length);
  if (!entry) return { answer: `${life.id} holds no blocks in this trace.` };
  const tokens = life.prompt.length || life.work[0].first + life.work[0].count;
  const needed = Math.ceil(tokens / run.blockSize);
  const last = life.tables.find(([, held]) => held.length >= needed) ?? entry;
  const mine = last[1].slice(0, needed);
  const size = run.kvBytes;
  const bytes = size ? `, ${withUnit(tokens * size, "B")} at ${three(size)} bytes a token` : "";
  const where = mine.length > 6 ? `${mine.slice(0, 3).join(", ")}, ... ${mine.at(-1)}` : mine.join(", ");
  const slots = mine.length * run.blockSize;
  const others = new Set(blocks.holds.filter((hold) => hold.life !== life.index && mine.includes(hold.block)
    && hold.first <= (life.lastStep ?? Infinity) && hold.last >= last[0]).map((hold) => run.lives[hold.life].id));
  const shared = others.size ? ` Some of them are shared with ${list([...others])}, whose prompts begin alike.` : "";
  return {
    answer: `The ${count(tokens, "prompt token")} of ${life.id} keep their keys and values in ${count(mine.length, "block")} `
      + `of the KV cache (number ${where})${bytes}.`,
    more: (slots > tokens ? `These blocks have room for ${slots - tokens} more; the answer grows into that first.`
      : "The last of them is full, so the answer begins with a new block.") + shared,
    step: last[0],
  };
}

function answerCost(run, life) {
  if (!life.tokens.length) return { answer: `${life.id} has no answer yet.` };
  const fed = sum(life.work.map((work) => work.count));
  const whole = (life.finished ?? life.times.at(-1)) - life.arrival;
  let flops = 0;
  let bytes = 0;
  let busy = 0;
  for (const work of life.work) {
    const step = run.steps[work.step];
    const share = work.count / step.fed;
    busy += step.ms * share;
    for (const [f, b] of Object.values(step.ops ?? {})) { flops += f * share; bytes += b * share; }
  }
  const work = flops ? ` Its share of the work: ${withUnit(flops, "FLOP")} of arithmetic and ${withUnit(bytes, "B")} moved between memory and processor, ${withUnit(bytes / life.tokens.length, "B")} for each token of the answer.` : "";
  const again = life.preempted.length ? ` It was thrown out ${count(life.preempted.length, "time")} and had to compute tokens again.` : "";
  return {
    answer: `The ${count(life.tokens.length, "token")} of ${life.id}'s answer took ${duration(whole)} and ${count(life.work.length, "step")}. `
      + `${count(fed, "token")} went through the model for it: ${fed - sum(life.work.filter((w) => !w.prefill).map((w) => w.count))} in prefill, the rest one by one.${again}`,
    more: `Shared out by tokens, the machine worked ${duration(busy)} for it.${work}`,
    step: life.tokenSteps.at(-1),
  };
}

const OPS = {
  linears: ["qkv", "output", "gate_up", "down"], attention: ["attention"], head: ["head"],
  other: ["embed", "norm", "rope", "kv_write", "swiglu"],
};

/** Work and time of some steps by class of operation, and what lies outside of all: calls
 * of Python, and waiting for the other cores. */
function phaseWork(steps) {
  const parts = Object.fromEntries(Object.keys(OPS).map((name) => [name, { flops: 0, bytes: 0, s: 0 }]));
  let calls = 0;
  let waiting = 0;
  let timed = false;
  let total = 0;
  for (const step of steps) {
    for (const [name, members] of Object.entries(OPS)) {
      for (const op of members) {
        const [flops, bytes, seconds] = step.ops[op] ?? [0, 0, null];
        parts[name].flops += flops;
        parts[name].bytes += bytes;
        parts[name].s += seconds ?? 0;
        timed ||= seconds !== null;
      }
    }
    calls += step.ops.rest?.[2] ?? 0;
    waiting += step.ops.waiting?.[2] ?? 0;
    total += step.ms / 1000;
  }
  return { parts, calls, waiting, timed, total };
}

/** Which of the three limits a phase runs into: the least times of arithmetic and of reading, and the calls of Python
 * that no operation accounts for. The longest of them is the limit. */
function limitOf(steps, ceilings) {
  const { parts, total, calls, waiting, timed } = phaseWork(steps);
  const rows = Object.values(parts);
  const compute = sum(rows.map((row) => row.flops)) / ceilings.flops_per_s;
  const reading = sum(rows.map((row) => row.bytes)) / ceilings.read_bytes_per_s;
  const floor = sum(rows.map((row) => Math.max(row.flops / ceilings.flops_per_s, row.bytes / ceilings.read_bytes_per_s)));
  const kind = calls > Math.max(compute, reading) ? "overhead" : compute > reading ? "arithmetic" : "reading";
  const intensity = sum(rows.map((row) => row.flops)) / sum(rows.map((row) => row.bytes));
  return { kind, compute, reading, floor, total, intensity, calls, waiting, timed };
}

function phases(run) {
  return {
    prefill: run.steps.filter((step) => step.prefillTokens > step.decodes),
    decode: run.steps.filter((step) => step.decodes && !step.prefillTokens),
  };
}

function limits(run, ceilings) {
  const groups = phases(run);
  if (!ceilings || !run.steps.some((step) => step.ops)) {
    const each = Object.entries(groups).filter(([, steps]) => steps.length).map(([name, steps]) => {
      const tokens = sum(steps.map((step) => step.fed));
      return `${name}: ${duration(sum(steps.map((s) => s.ms)) / tokens)} a token`;
    });
    return { answer: `This trace does not hold the work of its operations. What it shows: ${each.join("; ")}.` };
  }
  const ridge = ceilings.flops_per_s / ceilings.read_bytes_per_s;
  const told = Object.entries(groups).filter(([, steps]) => steps.length).map(([name, steps]) => {
    const found = limitOf(steps, ceilings);
    const side = `${three(found.intensity)} FLOP for each byte moved; ${found.intensity > ridge ? "from" : "up to"} ${three(ridge)} ${found.intensity > ridge ? "on arithmetic" : "reading"} takes longer on this machine`;
    const title = `${name[0].toUpperCase()}${name.slice(1)}`;
    const reached = `${Math.round(100 * found.floor / found.total)} % of what the roof allows${lostTo(found)}`;
    const [limit, because] = {
      arithmetic: ["arithmetic", "every weight that is read serves many tokens"],
      reading: ["reading memory", name === "decode" ? "all weights are read for one token of each request"
        : "all weights are read, and the prompts are too short to make up for it"],
      overhead: ["overhead", "the calls around the work take longer than the work would under the roof"],
    }[found.kind];
    return found.floor < found.total / 3 && found.kind !== "overhead"
      ? `${title}: ${limit} would be the limit, because ${because} (${side}). But in this run it reached only ${reached}.`
      : `${title} ran into ${limit}: ${because} (${side}). It reached ${reached}.`;
  });
  return { answer: told[0] ?? "", more: told.slice(1).join(" "), step: groups.decode[0]?.index };
}

/** Where the time under the roof went, when much of it is lost. */
function lostTo({ floor, total, calls, waiting, timed }) {
  if (!timed || floor > 0.7 * total) return "";
  const percent = (seconds) => `${Math.round(100 * seconds / total)} %`;
  const slow = total - floor - calls - waiting;
  const parts = [[calls, "in calls of Python"], [waiting, "in waiting for the other cores (a busy machine does that)"], [slow, "in operations slower than the roof"]]
    .filter(([seconds]) => seconds > 0.05 * total).map(([seconds, where]) => `${percent(seconds)} ${where}`);
  return parts.length ? `; of the time, ${list(parts)} were lost` : "";
}

/** The five questions, each with its answer from this run and the step at which to look. */
function stories(run, blocks, ceilings) {
  const life = run.lives.find((one) => one.times.length > 1) ?? run.lives[0];
  if (!life || !run.steps.length) return [];
  return [
    ["Why did the second token come faster than the first?", "h-time", "on the timeline", whySecondFaster(run, life)],
    ["What did the second request wait for?", "h-time", "on the timeline", whatSecondWaitedFor(run)],
    ["How much memory did the prompt take, and where?", "h-map", "in the KV cache", promptMemory(run, blocks, life)],
    ["What did the answer cost?", "h-strip", "token by token", answerCost(run, life)],
    ["Which limit did each phase run into?", "h-roof", "under the roof", limits(run, ceilings)],
  ].map(([question, pane, where, found]) => ({ question, pane, where, ...found }));
}

/** What the first requests asked and were answered, where the trace holds their text. */
function dialogue(run, limit = 4) {
  const asked = run.about.asked ?? {};
  const cut = (text) => (text.length > 140 ? `${text.slice(0, 139)}\u2026` : text);
  return run.lives.slice(0, limit).map((life) => {
    const pieces = life.tokens.map((token) => run.piece(token)).filter((text) => text !== null && !/^<\|.*\|>$/.test(text));
    const question = Object.hasOwn(asked, life.key) ? visible(cut(asked[life.key])) : null;
    return { id: life.id, question, answer: pieces.length ? visible(cut(pieces.join("").trim())) : null };
  }).filter((row) => row.question || row.answer);
}

/** One step in a sentence, for eyes and for screen readers. */
function stepSentence(run, step) {
  const name = (life) => run.lives[life].id;
  const prefills = step.seqs.filter((work) => work.prefill);
  const decodes = step.seqs.filter((work) => !work.prefill);
  const parts = [];
  if (prefills.length) parts.push(`prefill of ${list(prefills.map((w) => `${name(w.life)} (${count(w.count, "token")})`))}`);
  if (decodes.length) parts.push(`decode of ${list(decodes.map((w) => name(w.life)))}`);
  const said = [`Step ${step.index + 1} of ${run.steps.length}, ${duration(step.ms)}: ${parts.join(" and ") || "nothing ran"}.`];
  if (step.tokens.length) said.push(`Out came ${list(step.tokens.map(([life, token]) => `\u201c${run.word(token)}\u201d (${name(life)})`), 3)}.`);
  for (const [life, found] of step.admitted) if (found) said.push(`${name(life)} found ${count(found, "token")} of its prompt in the cache.`);
  for (const [life] of step.preempted) said.push(`${name(life)} was thrown out, its blocks were needed.`);
  for (const [life, why] of step.refused) said.push(`${name(life)} has to wait for ${plainReason(why)}.`);
  if (step.finished.length) said.push(`${list(step.finished.map(name))} ended.`);
  return said.join(" ");
}
