// The run as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open: a thread for each seat, counters
// for the queue and the free blocks.

function perfettoEvents(run) {
  const events = [{ name: "process_name", ph: "M", pid: 1, tid: 0, args: { name: `minifer: ${run.label}` } }];
  const us = (ms) => Math.round(ms * 1000);
  for (let slot = 0; slot < run.slots; slot += 1) {
    events.push({ name: "thread_name", ph: "M", pid: 1, tid: slot + 1, args: { name: `seat ${slot + 1}` } });
  }
  for (const stay of run.stays) {
    const life = run.lives[stay.life];
    for (const work of life.work) {
      if (work.step < stay.first || work.step > stay.last) continue;
      const step = run.steps[work.step];
      events.push({
        name: `${life.id} ${work.prefill ? "prefill" : "decode"}`, cat: work.prefill ? "prefill" : "decode", ph: "X",
        ts: us(step.start), dur: us(step.ms), pid: 1, tid: stay.slot + 1,
        args: { request: life.id, first: work.first, tokens: work.count, step: step.number },
      });
    }
  }
  for (const step of run.steps) {
    events.push({ name: "waiting", ph: "C", ts: us(step.start), pid: 1, args: { requests: step.waiting } });
    events.push({ name: "free blocks", ph: "C", ts: us(step.start), pid: 1, args: { blocks: step.free } });
  }
  return { displayTimeUnit: "ms", traceEvents: events };
}

/** Offer a text as a file. */
function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
