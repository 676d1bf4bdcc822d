// Time from left to right; a row for each request, or for each seat of the batch. One drawing serves both, for the run
// on show and for the pair of an A/B.

const ROW = 24;
const GUTTER = 58;
const AXIS = 24;

/** What a row shows: bars of one request each. */
function rowsOf(run, kind) {
  if (kind === "requests") {
    return run.lives.map((life) => ({ name: life.id, parts: [{ life, first: 0, last: Infinity }], wait: life }));
  }
  const rows = Array.from({ length: run.slots }, (_, slot) => ({ name: `seat ${slot + 1}`, parts: [], slot }));
  for (const stay of run.stays) rows[stay.slot].parts.push({ life: run.lives[stay.life], first: stay.first, last: stay.last });
  return rows;
}

class Timeline {
  /** `choose(step, life)` is called with what was clicked. */
  constructor(holder, choose) {
    this.holder = holder;
    this.zoom = 1;
    this.kind = "requests";
    this.selected = null;
    this.step = 0;
    this.surface = new Surface(holder, (pen, view) => this.draw(pen, view));
    holder.addEventListener("click", (event) => {
      const box = holder.getBoundingClientRect();
      const row = this.rows[Math.floor((event.clientY - box.top + holder.scrollTop - AXIS) / ROW)];
      const ms = (event.clientX - box.left + holder.scrollLeft - GUTTER) / this.scale;
      const step = this.run.stepAt(Math.max(0, ms));
      choose(step, row?.parts.find((part) => part.first <= step && step <= part.last)?.life ?? row?.wait ?? null);
    });
  }

  show(run, span = run.end) {
    this.run = run;
    this.span = Math.max(span, 1e-6);
    this.rows = rowsOf(run, this.kind);
    this.colours = colours();
    this.layout();
  }

  layout() {
    const height = AXIS + ROW * this.rows.length + 6;
    this.holder.style.height = `${Math.min(height, 20 * ROW) + 2}px`;
    this.scale = this.zoom * (this.holder.clientWidth - GUTTER - 12) / this.span;
    this.surface.size(GUTTER + 12 + this.span * this.scale, height);
    this.surface.ask();
  }

  mark(step, life, follow) {
    this.step = step;
    this.selected = life;
    const x = GUTTER + (this.run.steps[step]?.start ?? 0) * this.scale;
    const { scrollLeft, clientWidth } = this.holder;
    if (follow && this.zoom > 1 && (x < scrollLeft + GUTTER || x > scrollLeft + clientWidth - 40)) {
      this.holder.scrollLeft = x - clientWidth / 2;
    }
    this.surface.ask();
  }

  draw(pen, view) {
    this.scale = this.zoom * (view.width - GUTTER - 12) / this.span;
    const { run, colours: c } = this;
    const x = (ms) => GUTTER + ms * this.scale - view.left;
    const current = run.steps[this.step];
    if (current) rect(pen, x(current.start), 0, Math.max(2, current.ms * this.scale), view.height, c.mark);
    const firstRow = Math.max(0, Math.floor((view.top - AXIS) / ROW));
    const lastRow = Math.min(this.rows.length, Math.ceil((view.top + view.height - AXIS) / ROW));
    for (let i = firstRow; i < lastRow; i += 1) this.drawRow(pen, view, this.rows[i], AXIS + i * ROW - view.top, x);
    this.drawGutter(pen, view, firstRow, lastRow);
    this.drawAxis(pen, view, x);
  }

  drawRow(pen, view, row, y, x) {
    const { run, colours: c } = this;
    if (row.wait) this.drawWait(pen, row.wait, y, x, view);
    const empty = row.slot === undefined ? null : new Set(row.parts.flatMap((part) => [part.first]));
    for (const part of row.parts) {
      this.drawWork(pen, part, y, x, view);
      if (empty) {
        const from = x(run.steps[part.first].start);
        pen.fillStyle = c.ink;
        if ((run.steps[part.last].end - run.steps[part.first].start) * this.scale > 26) {
          this.label(pen, part.life.id, Math.max(from, GUTTER) + 4, y + ROW / 2);
        }
        this.drawEmptySeat(pen, row, part, y, x);
      }
    }
  }

  /** A label on a patch of its own, so that it can be read on any bar. */
  label(pen, text, x, y) {
    const width = pen.measureText(text).width;
    pen.fillStyle = this.colours.card;
    pen.fillRect(x - 2, y - 7, width + 4, 14);
    pen.fillStyle = this.colours.ink;
    pen.fillText(text, x, y + 1);
  }

  drawWait(pen, life, y, x, view) {
    const c = this.colours;
    const until = life.scheduled ?? this.run.end;
    if (x(until) > 0 && x(life.arrival) < view.width) {
      hatch(pen, x(life.arrival), y + 6, Math.max(1.5, (until - life.arrival) * this.scale), ROW - 12, c.wait);
    }
    for (const [step] of life.preempted) {
      const back = life.admitted.find(([at]) => at > step)?.[0];
      const from = this.run.steps[step].start;
      const to = back === undefined ? this.run.end : this.run.steps[back].start;
      hatch(pen, x(from), y + 6, (to - from) * this.scale, ROW - 12, c.out);
      rect(pen, x(from) - 1.5, y + 2, 3, ROW - 4, c.out);
    }
  }

  /** Steps of one phase that follow each other become one bar where they are too narrow to be told apart. */
  drawWork(pen, part, y, x, view) {
    const { run, colours: c } = this;
    const works = part.life.work;
    let i = this.firstVisible(works, Math.max(part.first, run.stepAt((view.left - GUTTER) / this.scale)));
    while (i < works.length && works[i].step <= part.last) {
      const from = x(run.steps[works[i].step].start);
      if (from > view.width) return;
      let j = i;
      let to = x(run.steps[works[i].step].end);
      while (to - from < 3 && j + 1 < works.length && works[j + 1].step <= part.last && works[j + 1].prefill === works[i].prefill) {
        j += 1;
        to = x(run.steps[works[j].step].end);
      }
      const gap = to - from > 4 ? 1 : 0;
      rect(pen, from, y + 3, to - from - gap, ROW - 6, works[i].prefill ? c.prefill : c.decode);
      i = j + 1;
    }
  }

  firstVisible(works, step) {
    let low = 0;
    let high = works.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (works[middle].step < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  /** A seat that is paid for although its answer is done: until the batch ends, or to the next one's arrival. */
  drawEmptySeat(pen, row, part, y, x) {
    const { run, colours: c } = this;
    let last = part.last;
    while (last + 1 < run.steps.length && run.steps[last + 1].seats > run.steps[last + 1].running) last += 1;
    const next = row.parts.find((other) => other.first > part.last);
    last = Math.min(last, next ? next.first - 1 : last);
    if (last > part.last) {
      const from = run.steps[part.last].end;
      hatch(pen, x(from), y + 3, (run.steps[last].end - from) * this.scale, ROW - 6, c.out);
    }
  }

  drawGutter(pen, view, firstRow, lastRow) {
    const c = this.colours;
    pen.fillStyle = c.card;
    pen.fillRect(0, 0, GUTTER - 4, view.height);
    for (let i = firstRow; i < lastRow; i += 1) {
      const row = this.rows[i];
      const mine = this.selected && row.wait === this.selected;
      pen.fillStyle = mine ? c.ink : c.soft;
      pen.font = `${mine ? "600 " : ""}12px system-ui, sans-serif`;
      pen.fillText(row.name.length > 8 ? `${row.name.slice(0, 7)}\u2026` : row.name, 4, AXIS + i * ROW - view.top + ROW / 2 + 1);
    }
    pen.font = "12px system-ui, sans-serif";
  }

  drawAxis(pen, view, x) {
    const c = this.colours;
    pen.fillStyle = c.card;
    pen.fillRect(0, 0, view.width, AXIS - 4);
    const every = tick(this.span / this.zoom, view.width / 90);
    const from = Math.max(0, Math.floor(((view.left - GUTTER) / this.scale) / every) * every);
    for (let ms = from; x(ms) < view.width - 30 && ms <= this.span * 1.001; ms += every) {
      if (x(ms) < GUTTER - 4) continue;
      rect(pen, x(ms), AXIS - 6, 1, 4, c.soft);
      pen.fillStyle = c.soft;
      pen.fillText(duration(Number(ms.toPrecision(12))), x(ms) + 1, 9);
    }
  }
}

/** Brackets of one request: queue, TTFT, and every gap between two tokens. Returns what marks a step in them. */
function drawBrackets(place, run, life) {
  const width = Math.max(280, place.clientWidth || 600);
  const ttft = run.ttft(life);
  const end = life.finished ?? life.times.at(-1) ?? run.end;
  const span = Math.max(end - life.arrival, 1e-6);
  const x = (ms) => 6 + (width - 12) * (ms - life.arrival) / span;
  const svg = el("svg:svg", { viewBox: `0 0 ${width} 92`, width, height: 92, role: "img", class: "brackets" });
  const parts = [];
  const bracket = (from, to, y, text, kind) => {
    const half = text.length * 3.3 + 4;
    const label = el("svg:text", { x: Math.min(Math.max((x(from) + x(to)) / 2, half), width - half), y: y - 5, "text-anchor": "middle" }, text);
    svg.append(el("svg:path", { d: `M${x(from)} ${y + 6}V${y}H${x(to)}V${y + 6}`, class: `bracket ${kind}` }), label);
    parts.push(text);
  };
  const bar = (from, to, kind) => svg.append(el("svg:rect", { x: x(from), y: 36, width: Math.max(1, x(to) - x(from)), height: 16, class: kind }));
  if (life.scheduled !== null) bar(life.arrival, life.scheduled, "wait");
  if (ttft !== null) {
    bar(life.scheduled, life.times[0], "prefill");
    bracket(life.arrival, life.times[0], 26, `first token (TTFT) ${duration(ttft)}`, "ttft");
  }
  if (life.times.length > 1) {
    bar(life.times[0], life.times.at(-1), "decode");
    const gaps = run.itl(life);
    svg.append(el("svg:text", { x: width - 6, y: 84, "text-anchor": "end" },
      `${width < 480 ? "" : "gaps between tokens, "}ITL: median ${duration(median(gaps))}, longest ${duration(Math.max(...gaps))}`));
    parts.push(`median gap ${duration(median(gaps))}`);
    let drawn = -9;
    for (const time of life.times) {
      if (x(time) - drawn < 2.5) continue;
      drawn = x(time);
      svg.append(el("svg:line", { x1: drawn, x2: drawn, y1: 54, y2: 66, class: "tokenmark" }));
    }
  }
  const queue = run.queue(life);
  if (queue !== null && queue > 0.03 * span) {
    svg.append(el("svg:text", { x: 6, y: 84 }, `queue ${duration(queue)}`));
    parts.unshift(`in the queue ${duration(queue)}`);
  }
  const now = el("svg:line", { y1: 30, y2: 68, class: "now" });
  svg.append(now);
  svg.setAttribute("aria-label", `${life.id}: ${parts.join("; ") || "no token yet"}`);
  place.replaceChildren(svg);
  /** Move the mark of the present step; outside the request's life there is none. */
  return (step) => {
    const inside = step.end >= life.arrival && step.start <= end;
    now.setAttribute("visibility", inside ? "visible" : "hidden");
    for (const name of ["x1", "x2"]) now.setAttribute(name, x(Math.min(step.end, end)));
  };
}
