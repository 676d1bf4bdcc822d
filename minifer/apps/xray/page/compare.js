// A and B: two runs of one workload with one switch flipped, on one scale of time.

function figures(run, blocks) {
  const ttfts = run.lives.map((life) => run.ttft(life)).filter((value) => value !== null);
  const gaps = run.lives.flatMap((life) => run.itl(life));
  const most = run.steps.map((step) => step.free).reduce((a, b) => Math.min(a, b), Infinity);
  return {
    "whole run": [run.end, duration], steps: [run.steps.length, three],
    "first token, median (TTFT)": [median(ttfts), duration], "first token, worst": [Math.max(...ttfts), duration],
    "gap between tokens, median (ITL)": [median(gaps), duration], "gap, worst": [gaps.reduce((a, b) => Math.max(a, b), 0), duration],
    "tokens computed": [sum(run.steps.map((step) => step.fed)), three],
    "prompt tokens found in the cache": [sum(run.lives.map((life) => run.cached(life))), three],
    "seats paid for and empty, in steps": [sum(run.steps.map((step) => Math.max(0, step.seats - step.running))), three],
    "most blocks held": [blocks.total - most, three], preemptions: [sum(run.lives.map((life) => life.preempted.length)), three],
  };
}

/** The difference that matters most, in a sentence. */
function compareSentence(a, b, left, right) {
  const ratio = b.end / a.end;
  const faster = ratio > 1.03 ? `\u201c${a.label}\u201d was done ${three(ratio)} times as fast as \u201c${b.label}\u201d`
    : ratio < 0.97 ? `\u201c${b.label}\u201d was done ${three(1 / ratio)} times as fast as \u201c${a.label}\u201d` : "Both took about equally long";
  const changed = Object.keys(left).filter((name) => name !== "whole run" && left[name][0] !== right[name][0]
    && Number.isInteger(left[name][0])).map((name) => `${name} ${three(left[name][0])} against ${three(right[name][0])}`);
  const same = a.steps.length === b.steps.length && a.steps.every((step, i) => step.fed === b.steps[i].fed && step.seats === b.steps[i].seats);
  if (same) return `The switch changed nothing here: both ran the same steps over the same tokens. What differs in time (${duration(a.end)} and ${duration(b.end)}) is the machine.`;
  return `${faster} (${duration(a.end)} and ${duration(b.end)}).${changed.length ? ` What differs: ${changed.join("; ")}.` : ""}`;
}

function drawCompare(place, note, runs, maps, lines) {
  const [a, b] = runs;
  const [left, right] = [figures(a, maps[0]), figures(b, maps[1])];
  note.textContent = compareSentence(a, b, left, right);
  const span = Math.max(a.end, b.end);
  lines.forEach((line, i) => { line.kind = "seats"; line.show(runs[i], span); });
  place.replaceChildren(table("Two runs of one workload", ["", `A: ${a.label}`, `B: ${b.label}`],
    Object.keys(left).map((name) => [name, left[name][1](left[name][0]), right[name][1](right[name][0])])));
}
