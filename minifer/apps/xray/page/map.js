// The KV cache as a map: a square for each block, as full as it is written, in the colour of who holds it.

class BlockMap {
  constructor(holder, note) {
    this.holder = holder;
    this.note = note;
    this.surface = new Surface(holder, (pen, view) => this.draw(pen, view));
  }

  show(run, blocks, step) {
    Object.assign(this, { run, blocks, step, cells: blocks.at(step), colours: colours() });
    this.cell = 46;
    this.columns = Math.max(4, Math.floor(this.holder.clientWidth / this.cell));
    const height = Math.ceil(blocks.shown.length / this.columns) * this.cell;
    this.holder.style.height = `${Math.min(320, height + 2)}px`;
    this.surface.size(this.columns * this.cell, height);
    const rows = [...this.cells.keys()].filter((block) => !this.cells.get(block).idle)
      .map((block) => Math.floor(blocks.placeOf.get(block) / this.columns) * this.cell);
    const { scrollTop, clientHeight } = this.holder;
    const inView = rows.some((y) => y >= scrollTop - 1 && y + this.cell <= scrollTop + clientHeight + 1);
    if (rows.length && !inView) this.holder.scrollTop = Math.min(...rows);
    this.surface.ask();
    this.note.textContent = this.sentence();
  }

  sentence() {
    const { blocks, run } = this;
    const use = blocks.usage(this.cells);
    const bytes = run.kvBytes ? ` That is ${withUnit(use.held * blocks.size * run.kvBytes, "B")} taken, ${withUnit(use.wasted * run.kvBytes, "B")} of it not written yet.` : "";
    const shared = use.shared ? ` ${count(use.shared, "block")} ${use.shared === 1 ? "is" : "are"} shared, which saves ${use.saved}.` : "";
    const idle = use.idle ? ` ${count(use.idle, "block")} ${use.idle === 1 ? "is" : "are"} free, but the next prompt that begins alike would find ${use.idle === 1 ? "it" : "them"}.` : "";
    const rest = blocks.total > blocks.shown.length ? ` Drawn are the ${blocks.shown.length} that this run ever used.` : "";
    return `${use.held} of ${blocks.total.toLocaleString("en")} blocks are held, ${blocks.size} tokens each; ${use.written} slots are written, ${use.wasted} in them still empty.${bytes}${shared}${idle}${rest}`;
  }

  draw(pen, view) {
    const first = Math.floor(view.top / this.cell) * this.columns;
    const last = Math.min(this.blocks.shown.length, Math.ceil((view.top + view.height) / this.cell) * this.columns);
    for (let i = first; i < last; i += 1) {
      this.square(pen, this.blocks.shown[i], (i % this.columns) * this.cell + 1.5, Math.floor(i / this.columns) * this.cell + 1.5 - view.top, this.cell - 5);
    }
  }

  square(pen, block, x, y, size) {
    const { colours: c, run } = this;
    const found = this.cells.get(block);
    rect(pen, x, y, size, size, c.faint);
    if (!found) return this.number(pen, block, x, y);
    if (found.idle) {
      hatch(pen, x, y, size, size, c.found);
    } else {
      const part = size / found.owners.length;
      const high = size * found.used / this.blocks.size;
      found.owners.forEach((life, i) => rect(pen, x + i * part, y + size - high, part, high, ownerColour(life)));
    }
    pen.lineWidth = found.owners.length > 1 ? 2.5 : 1;
    pen.strokeStyle = found.owners.length > 1 ? c.ink : c.soft;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    const text = found.idle ? "" : found.owners.length > 1 ? `\u00d7${found.owners.length}` : run.lives[found.owners[0]].id.slice(0, 4);
    if (text) {
      pen.font = "600 11px system-ui, sans-serif";
      const width = pen.measureText(text).width;
      pen.fillStyle = "rgba(255,255,255,0.82)";
      pen.fillRect(x + (size - width) / 2 - 2, y + size / 2 - 3, width + 4, 14);
      pen.fillStyle = "#1b1b1b";
      pen.fillText(text, x + (size - width) / 2, y + size / 2 + 5);
    }
    this.number(pen, block, x, y, found.idle || found.used < this.blocks.size ? c.soft : "#1b1b1b");
  }

  /** The block's own number, small, in its corner. */
  number(pen, block, x, y, colour = this.colours.soft) {
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = colour;
    pen.fillText(String(block), x + 3, y + 8);
  }

  table() {
    const rows = [...this.cells.entries()].sort((a, b) => a[0] - b[0]).map(([block, cell]) => [
      block, cell.idle ? "nobody (findable)" : cell.owners.map((life) => this.run.lives[life].id).join(", "), `${cell.used} of ${this.blocks.size}`]);
    return table(`Blocks in step ${this.step + 1}`, ["block", "held by", "slots written"], rows);
  }
}
