// Where a step's operations stand under the roofline: arithmetic per byte from left to right, arithmetic per second
// upwards, both by factors of ten. No operation can be above the roof; how far below it stands is what is lost.

const CLASS_NAMES = { linears: "linear layers", attention: "attention", head: "head", other: "the rest", step: "the whole step" };

class Roof {
  constructor(place, note, details) {
    Object.assign(this, { place, note, details });
  }

  show(run, step, ceilings) {
    Object.assign(this, { run, step, ceilings });
    this.place.nextElementSibling.hidden = !step?.ops || !ceilings;
    if (!step?.ops || !ceilings) {
      this.place.replaceChildren();
      this.note.textContent = "This trace does not hold the work of its operations. `minifer xray MODEL \"prompt\"` records it.";
      return;
    }
    const { parts, ...rest } = phaseWork([step]);
    const rows = Object.entries(parts).filter(([, part]) => part.bytes > 0);
    this.timed = rest.timed;
    this.note.textContent = this.sentence(rows, rest);
    this.place.replaceChildren(this.plot(rows, step));
  }

  floor(part) {
    return Math.max(part.flops / this.ceilings.flops_per_s, part.bytes / this.ceilings.read_bytes_per_s);
  }

  sentence(rows, { calls, waiting, total, timed }) {
    const floor = sum(rows.map(([, part]) => this.floor(part)));
    const flops = sum(rows.map(([, part]) => part.flops));
    const bytes = sum(rows.map(([, part]) => part.bytes));
    const kind = flops / this.ceilings.flops_per_s > bytes / this.ceilings.read_bytes_per_s ? "arithmetic" : "reading memory";
    const lost = lostTo({ floor, calls, waiting, total, timed });
    return `This step needed ${withUnit(flops, "FLOP")} and moved ${withUnit(bytes, "B")}. Under the roof it could not take less than ${duration(1000 * floor)}, most of it ${kind}; it took ${duration(1000 * total)}, so it reached ${Math.round(100 * floor / total)} %${lost}. The roof: ${withUnit(this.ceilings.read_bytes_per_s, "B/s")} and ${withUnit(this.ceilings.flops_per_s, "FLOP/s")}, ${this.ceilings.source}.`;
  }

  plot(rows, step) {
    const width = Math.max(300, Math.min(620, this.place.clientWidth || 480));
    const height = 270;
    const { flops_per_s: peak, read_bytes_per_s: rate } = this.ceilings;
    const left = 54;
    const bottom = height - 34;
    const low = Math.log10(0.1);
    const high = Math.log10(Math.max(1000, 10 * peak / rate));
    const top = Math.log10(peak * 3);
    const base = Math.min(top - 4, Math.log10(rate * 0.1));
    const x = (v) => left + (width - left - 24) * (Math.log10(v) - low) / (high - low);
    const y = (v) => bottom - (bottom - 12) * (Math.log10(v) - base) / (top - base);
    const svg = el("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "roof", "aria-label": "Roofline: the operations of this step. The table below has the numbers." });
    for (let power = Math.ceil(low); power <= high; power += 1) {
      svg.append(el("svg:line", { x1: x(10 ** power), x2: x(10 ** power), y1: 12, y2: bottom, class: "grid" }),
        el("svg:text", { x: x(10 ** power), y: bottom + 14, "text-anchor": "middle" }, String(10 ** power)));
    }
    for (let power = Math.ceil(base); power <= top; power += 1) {
      svg.append(el("svg:line", { x1: left, x2: width - 24, y1: y(10 ** power), y2: y(10 ** power), class: "grid" }),
        el("svg:text", { x: left - 5, y: y(10 ** power) + 4, "text-anchor": "end" }, withUnit(10 ** power, "")));
    }
    const ridge = peak / rate;
    svg.append(
      el("svg:path", { d: `M${x(10 ** low)} ${y(rate * 10 ** low)}L${x(ridge)} ${y(peak)}H${width - 24}`, class: "ceiling" }),
      el("svg:text", { x: width - 26, y: y(peak) - 6, "text-anchor": "end" }, "arithmetic"),
      el("svg:text", { x: x(ridge / 8), y: y(peak / 8) - 12, "text-anchor": "end" }, "reading"),
      el("svg:text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "FLOP for each byte moved"),
      el("svg:text", { x: 4, y: 10 }, "FLOP/s"));
    const phase = step.prefillTokens > step.decodes ? "prefill" : "decode";
    this.labels = [];
    if (!this.timed) rows = [["step", { flops: sum(rows.map(([, p]) => p.flops)), bytes: sum(rows.map(([, p]) => p.bytes)), s: step.ms / 1000 }]];
    rows.forEach(([name, part]) => this.dot(svg, x, y, name, part, phase, 10 ** base, width));
    return svg;
  }

  dot(svg, x, y, name, part, phase, least, width) {
    if (!part.flops || !part.s) return;
    const at = [x(Math.max(0.1, part.flops / part.bytes)), y(Math.max(least, part.flops / part.s))];
    const radius = Math.max(3, Math.min(20, 3 + 17 * Math.sqrt(part.s / Math.max(this.step.ms / 1000, 1e-9))));
    const share = Math.round(100 * this.floor(part) / part.s);
    const end = at[0] > width - 150;
    let low = at[1] + 4;
    while (this.labels.some(([x0, y0]) => Math.abs(x0 - at[0]) < 130 && Math.abs(y0 - low) < 13)) low -= 13;
    this.labels.push([at[0], low]);
    svg.append(el("svg:circle", { cx: at[0], cy: at[1], r: radius, class: `dot ${phase}` }),
      el("svg:text", { x: at[0] + (end ? -1 : 1) * (radius + 4), y: low, class: "dotlabel", "text-anchor": end ? "end" : "start" },
        `${CLASS_NAMES[name]} ${share} %`));
  }

  table() {
    if (!this.step?.ops || !this.ceilings) return el("p", {}, "No numbers in this trace.");
    const rows = Object.entries(this.step.ops).map(([name, [flops, bytes, seconds]]) => {
      const compute = flops / this.ceilings.flops_per_s;
      const reading = bytes / this.ceilings.read_bytes_per_s;
      const floor = Math.max(compute, reading);
      return [name, bytes ? withUnit(flops, "") : "", bytes ? withUnit(bytes, "B") : "", bytes ? three(flops / bytes) : "",
        seconds === null ? "" : duration(1000 * seconds), bytes ? duration(1000 * floor) : "",
        seconds && bytes ? `${Math.round(100 * floor / seconds)} %` : "", bytes ? (compute > reading ? "arithmetic" : "reading") : ""];
    });
    return table(`Operations of step ${this.step.index + 1}`, ["operation", "FLOP", "moved", "FLOP/byte", "took", "at least", "of the roof", "limit"], rows);
  }
}
