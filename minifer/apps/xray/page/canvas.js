// A canvas that is as large as what can be seen, however long the run: a spacer gives the scroll bars their length, the
// canvas stays put and draws only the part in view. `work` counts what was drawn, for tests and for the curious.

const work = { frames: 0, rects: 0, chips: 0 };
const DECODE_MIN_PX = 0.75;

/** The colours of the theme that is on. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["ink", "soft", "line", "paper", "card", "prefill", "decode", "wait", "found", "out", "mark", "faint"]
    .map((name) => [name, read(name)]));
}

const OWNERS = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999"];
const ownerColour = (life) => OWNERS[life % OWNERS.length];

class Surface {
  constructor(holder, draw) {
    this.holder = holder;
    this.draw = draw;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.spacer = el("div", { class: "spacer" });
    this.spacer.append(this.canvas);
    holder.replaceChildren(this.spacer);
    this.queued = false;
    holder.addEventListener("scroll", () => this.ask(), { passive: true });
    new ResizeObserver(() => this.ask()).observe(holder);
  }

  /** Set the size of the whole drawing, in CSS pixels. */
  size(width, height) {
    this.spacer.style.width = `${width}px`;
    this.spacer.style.height = `${height}px`;
  }

  /** Draw before the next frame; many requests make one drawing. */
  ask() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.paint(); });
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.holder;
    if (!width || !height) return;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    work.frames += 1;
    work.rects = 0;
    this.draw(pen, { width, height, left: this.holder.scrollLeft, top: this.holder.scrollTop });
  }
}

function rect(pen, x, y, width, height, fill) {
  pen.fillStyle = fill;
  pen.fillRect(x, y, Math.max(DECODE_MIN_PX, width), height);
  work.rects += 1;
}

/** Diagonal lines: what is empty, waiting, or only kept. */
function hatch(pen, x, y, width, height, colour) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  const from = Math.max(x, -20) - height;
  const to = Math.min(x + width, 5000);
  for (let at = from - (from % 6); at < to; at += 6) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
  work.rects += 1;
}

/** Round distances between the marks of an axis: 1, 2 or 5 times a power of ten. */
function tick(span, marks) {
  const raw = span / Math.max(1, marks);
  const base = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * base).find((n) => n >= raw);
}
