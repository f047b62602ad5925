// The radix tree as the page keeps it: arrays by node number, their layout as an espalier (branches
// trained to the right, a row for each leaf), and a picture of it in pixels. Knows no DOM.

const ROOT_GAP = 1;  // rows between namespaces
export const HOST = 1, STORAGE = 2;  // bits of a node's tiers

export class Forest {
  constructor() {
    this.reading = 0;
    this.now = 0;
    this.total = 0;    // nodes of the server's tree
    this.count = 0;    // nodes here, without roots
    this.rows = 1;
    this.length = 1;   // tokens of the longest path
    this.cached = 0;   // tokens on the device
    this.away = 0;     // nodes that only tiers have
    this.hasTiers = false;
    this.locked = 0;   // nodes
    this.order = new Uint32Array(0);  // numbers by row, from above, roots included
    this.ghosts = [];  // what was evicted: {x0, x1, y, at}
    this.names = new Map();  // namespaces by root
    this.reserve(1024);
  }

  reserve(size) {
    const old = this.live?.length ?? 0;
    if (size < old && old > 0) return;
    const capacity = Math.max(1024, 2 ** Math.ceil(Math.log2(size + 1)));
    const fields = {live: Uint8Array, parent: Uint32Array, tokens: Uint32Array, locks: Int32Array, resident: Uint8Array, tiers: Uint8Array,
      created: Float64Array, used: Float64Array, end: Uint32Array, hitAt: Float64Array, newAt: Float64Array,
      x0: Float32Array, x1: Float32Array, y: Float32Array, toX0: Float32Array, toX1: Float32Array, toY: Float32Array,
      first: Uint32Array, next: Uint32Array, low: Float32Array, high: Float32Array};
    for (const [name, Type] of Object.entries(fields)) {
      const array = new Type(capacity);
      if (this[name]) array.set(this[name]);
      this[name] = array;
    }
  }

  // Takes an answer of /cache_tree at `time` (milliseconds). Returns whether anything changed.
  take(changes, time) {
    const first = this.reading === 0;
    const changed = changes.whole || changes.nodes.length > 0 || changes.removed.length > 0;
    if (changes.whole) {
      this.live.fill(0);
      this.names.clear();
    }
    for (const number of changes.removed) this.remove(number, time);
    for (const [number, parent, tokens, locks, created, used, resident, tiers, name] of changes.nodes) {
      this.reserve(number + 1);
      const known = this.live[number] && this.created[number] === created;
      if (this.live[number] && !known) this.remove(number, time);
      if (!known) {
        this.newAt[number] = first || !resident ? -1e9 : time;
        this.hitAt[number] = -1e9;
        this.x0[number] = NaN;
      } else if (this.used[number] !== used) {
        this.hitAt[number] = time;
      }
      this.live[number] = 1;
      this.parent[number] = parent;
      this.tokens[number] = tokens;
      this.locks[number] = locks;
      this.created[number] = created;
      this.used[number] = used;
      this.resident[number] = resident ? 1 : 0;
      this.tiers[number] = tiers;
      if (parent === 0) this.names.set(number, name ?? '');
    }
    this.reading = changes.reading;
    this.now = changes.now;
    this.total = changes.num_nodes;
    this.hasTiers = changes.has_tiers;
    if (changed) this.layout();
    return changed;
  }

  remove(number, time) {
    if (!this.live[number]) return;
    this.live[number] = 0;
    this.names.delete(number);
    if (!Number.isNaN(this.x0[number]) && this.ghosts.length < 5000)
      this.ghosts.push({x0: this.x0[number], x1: this.x1[number], y: this.y[number], at: time});
  }

  // Rows in order of the nodes' creation, so that a tree that grows moves little.
  layout() {
    const numbers = [];
    for (let n = 1; n < this.live.length; ++n) if (this.live[n]) numbers.push(n);
    numbers.sort((a, b) => this.created[b] - this.created[a]);
    this.first.fill(0);
    const roots = [];
    for (const n of numbers) {  // the youngest first, so that the oldest ends in front
      const parent = this.parent[n];
      if (parent === 0 || !this.live[parent]) {
        roots.unshift(n);
        continue;
      }
      this.next[n] = this.first[parent];
      this.first[parent] = n;
    }
    let row = 0, at = 0;
    this.length = 1;
    this.cached = this.locked = this.count = this.away = 0;
    this.order = new Uint32Array(numbers.length);
    for (const root of roots) {
      this.end[root] = this.tokens[root];
      const stack = [root];
      while (stack.length) {
        const n = stack.pop();
        this.order[at++] = n;
        if (this.parent[n] !== 0) {
          if (this.resident[n]) {
            ++this.count;
            this.cached += this.tokens[n];
          } else {
            ++this.away;
          }
          if (this.locks[n] > 0) ++this.locked;
        }
        this.length = Math.max(this.length, this.end[n]);
        if (!this.first[n]) this.toY[n] = row++;
        const begin = stack.length;
        for (let child = this.first[n]; child; child = this.next[child]) {
          this.end[child] = this.end[n] + this.tokens[child];
          stack.push(child);
        }
        for (let i = begin, j = stack.length - 1; i < j; ++i, --j) [stack[i], stack[j]] = [stack[j], stack[i]];
      }
      row += ROOT_GAP;
    }
    this.rows = Math.max(1, row - ROOT_GAP);
    this.place();
  }

  place() {
    const x = (tokens) => Math.sqrt(tokens / this.length);
    for (let i = this.order.length - 1; i >= 0; --i) {  // children before their parents
      const n = this.order[i];
      this.toX0[n] = x(this.end[n] - this.tokens[n]);
      this.toX1[n] = x(this.end[n]);
      if (!this.first[n]) continue;
      let low = Infinity, high = -Infinity;
      for (let child = this.first[n]; child; child = this.next[child]) {
        low = Math.min(low, this.toY[child]);
        high = Math.max(high, this.toY[child]);
      }
      this.toY[n] = (low + high) / 2;
    }
    for (const n of this.order) {
      if (!Number.isNaN(this.x0[n])) continue;
      this.x0[n] = this.x1[n] = this.toX0[n];  // a new branch grows out of its parent
      this.y[n] = this.toY[n];
    }
  }

  // Moves everything towards its place; whether anything still moves.
  step(share) {
    let moves = false;
    for (const n of this.order) {
      const dy = this.toY[n] - this.y[n], d0 = this.toX0[n] - this.x0[n], d1 = this.toX1[n] - this.x1[n];
      if (Math.abs(dy) < 0.02 && Math.abs(d0) + Math.abs(d1) < 0.0005) {
        this.y[n] = this.toY[n];
        this.x0[n] = this.toX0[n];
        this.x1[n] = this.toX1[n];
        continue;
      }
      moves = true;
      this.y[n] += dy * share;
      this.x0[n] += d0 * share;
      this.x1[n] += d1 * share;
    }
    return moves;
  }

  children(n) {
    const out = [];
    for (let child = this.first[n]; child; child = this.next[child]) out.push(child);
    return out;
  }
}

const FLASH_MS = 1500;
const RAMP = 32;

const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const mix = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));

export class Painter {
  // colours: {card, tree, old, locked, hit, new, gone, away, disk} as [r, g, b].
  constructor(colours) {
    const ramp = (from, to) => Uint32Array.from({length: RAMP}, (_, i) => pack(mix(from, to, i / (RAMP - 1))));
    this.card = pack(colours.card);
    this.age = ramp(colours.tree, colours.old);
    this.locked = pack(colours.locked);
    this.away = pack(colours.away);
    this.disk = pack(colours.disk);
    this.line = pack(mix(colours.card, colours.tree, 0.55));
    this.hit = ramp(colours.hit, colours.tree);
    this.fresh = ramp(colours.new, colours.tree);
    this.gone = ramp(colours.gone, colours.card);
    this.select = pack(colours.hit);
    this.image = null;
  }

  // Draws into a canvas whose context is in device pixels. view: {x, y, scaleX, scaleY} in device
  // pixels: a place (u, row) is at (x + u * scaleX, y + row * scaleY). Whether something fades still.
  paint(context, width, height, forest, view, time, selected) {
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const pixels = this.pixels;
    pixels.fill(this.card);
    let fading = false;
    const thick = Math.max(1, Math.min(12, Math.round(view.scaleY * 0.5)));
    const up = thick >> 1;
    const bar = (x0, x1, y, colour, extra = 0) => {
      const from = Math.max(0, Math.round(view.x + x0 * view.scaleX));
      const to = Math.min(width, Math.max(from + 1, Math.round(view.x + x1 * view.scaleX)));
      if (to <= from) return;
      const middle = Math.round(view.y + y * view.scaleY);
      const below = Math.min(height, middle - up + thick + extra);
      for (let row = Math.max(0, middle - up - extra); row < below; ++row) pixels.fill(colour, row * width + from, row * width + to);
    };
    forest.ghosts = forest.ghosts.filter((ghost) => time - ghost.at < FLASH_MS);
    for (const ghost of forest.ghosts) bar(ghost.x0, ghost.x1, ghost.y, this.gone[this.shade(time - ghost.at)]);
    fading ||= forest.ghosts.length > 0;
    this.connect(forest, view, width, height);
    const {now, order} = forest;
    const top = -view.y / view.scaleY - 1, bottom = (height - view.y) / view.scaleY + 1;
    for (let i = 0; i < order.length; ++i) {
      const n = order[i], y = forest.y[n];
      if (y < top || y > bottom || forest.tokens[n] === 0) continue;
      let colour;
      if (time - forest.newAt[n] < FLASH_MS) {
        colour = this.fresh[this.shade(time - forest.newAt[n])];
        fading = true;
      } else if (forest.locks[n] > 0) {
        colour = this.locked;
      } else if (time - forest.hitAt[n] < FLASH_MS) {
        colour = this.hit[this.shade(time - forest.hitAt[n])];
        fading = true;
      } else if (!forest.resident[n]) {
        colour = forest.tiers[n] & HOST ? this.away : this.disk;
      } else {
        colour = this.age[Math.min(RAMP - 1, Math.floor(Math.log2(1 + now - forest.used[n]) * 2))];
      }
      bar(forest.x0[n], forest.x1[n], y, colour);
    }
    if (selected && forest.live[selected]) bar(forest.x0[selected], forest.x1[selected], forest.y[selected], this.select, 2);
    context.putImageData(this.image, 0, 0);
    return fading;
  }

  shade(age) { return Math.min(RAMP - 1, Math.max(0, Math.floor(age / FLASH_MS * RAMP))); }

  // The upright lines that branches grow from, each from its first child to its last.
  connect(forest, view, width, height) {
    const {order, parent, low, high} = forest;
    for (let i = 0; i < order.length; ++i) {
      low[order[i]] = Infinity;
      high[order[i]] = -Infinity;
    }
    for (let i = 0; i < order.length; ++i) {
      const n = order[i], p = parent[n];
      if (p === 0) continue;
      if (forest.y[n] < low[p]) low[p] = forest.y[n];
      if (forest.y[n] > high[p]) high[p] = forest.y[n];
    }
    for (let i = 0; i < order.length; ++i) {
      const n = order[i];
      if (low[n] === Infinity) continue;
      const x = Math.round(view.x + forest.x1[n] * view.scaleX);
      if (x < 0 || x >= width) continue;
      const from = Math.max(0, Math.round(view.y + low[n] * view.scaleY));
      const to = Math.min(height - 1, Math.round(view.y + high[n] * view.scaleY));
      for (let row = from; row <= to; ++row) this.pixels[row * width + x] = this.line;
    }
  }
}
