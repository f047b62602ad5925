// The live radix tree: reads /cache_tree while it is shown, draws it, and lets one walk in it.
import {$, colour, count, debounce, legend, rgb} from './dom.js';
import {get} from './api.js';
import {Forest, HOST, Painter, STORAGE} from './forest.js';

const POLL_MS = 250;
const MARGIN = 14;

const forest = new Forest();
let painter = null;
let shown = false, polling = false, failed = '', dirty = true, requested = false, settled = true;
let selected = 0;
const view = {x: 0, y: 0, scaleX: 1, scaleY: 1, fits: true};  // in device pixels

export function startTree() {
  drawLegend();
  $('tree-fit').addEventListener('click', fit);
  $('tree-in').addEventListener('click', () => zoom(1.5));
  $('tree-out').addEventListener('click', () => zoom(1 / 1.5));
  document.addEventListener('themechange', () => { painter = null; draw(); });
  document.addEventListener('visibilitychange', poll);
  $('tree-pause').addEventListener('change', poll);
  new ResizeObserver(() => { if (view.fits) fit(); draw(); }).observe($('tree-canvas'));
  startPointer($('tree-canvas'));
  $('tree-canvas').addEventListener('keydown', onKey);
}

export function setTreeShown(on) {
  shown = on;
  if (!on) return;
  draw();
  poll();
}

function drawLegend() {
  const tiers = forest.hasTiers ? [['away', 'evicted, in host memory'], ['disk', 'evicted, in storage']] : [];
  legend($('tree-legend'), [['locked', 'in use'], ['tree', 'cached'], ['old', 'not used for long'], ['new', 'new'], ['hit', 'hit'], ['gone', 'evicted'], ...tiers]);
}

async function poll() {
  if (polling) return;
  polling = true;
  while (shown && !document.hidden && !$('tree-pause').checked) {
    try {
      const changes = await get(`cache_tree?since=${forest.reading}`, {admin: true});
      failed = '';
      if (forest.hasTiers !== changes.has_tiers) {
        forest.hasTiers = changes.has_tiers;
        drawLegend();
      }
      if (forest.take(changes, performance.now())) {
        if (view.fits) fit();
        settled = false;
        draw();
      }
    } catch (error) {
      failed = error.message;
    }
    summarise();
    await new Promise((resolve) => { setTimeout(resolve, failed ? 2000 : POLL_MS); });
  }
  polling = false;
}

function summarise() {
  const more = forest.total > forest.count ? ` of ${count(forest.total)}` : '';
  $('tree-summary').textContent = failed || `${count(forest.count)}${more} nodes, ${count(forest.cached)} tokens cached, ${forest.locked} in use${forest.hasTiers ? `; ${count(forest.away)} evicted nodes in tiers` : ''}`;
  $('tree-summary').classList.toggle('error', failed !== '');
  $('tree-empty').hidden = forest.count + forest.away > 0 || failed !== '';
}

const pixelRatio = () => window.devicePixelRatio || 1;

function fit() {
  const canvas = $('tree-canvas'), scale = pixelRatio(), margin = MARGIN * scale;
  const width = canvas.clientWidth * scale - 2 * margin, height = canvas.clientHeight * scale - 2 * margin;
  if (width <= 0 || height <= 0) return;
  view.scaleX = width;
  view.scaleY = Math.min(26 * scale, height / forest.rows);
  view.x = margin;
  view.y = margin + Math.min(view.scaleY / 2, height / 2);
  view.fits = true;
  draw();
}

function zoom(factor, x = null, y = null, factorX = factor) {
  const canvas = $('tree-canvas');
  x ??= canvas.width / 2;
  y ??= canvas.height / 2;
  view.x = x - (x - view.x) * factorX;
  view.y = y - (y - view.y) * factor;
  view.scaleX *= factorX;
  view.scaleY *= factor;
  view.fits = false;
  draw();
}

function draw() {
  dirty = true;
  if (requested || !shown) return;
  requested = true;
  requestAnimationFrame(frame);
}

function frame(time) {
  requested = false;
  if (!shown || !dirty) return;
  dirty = false;
  const canvas = $('tree-canvas'), scale = pixelRatio();
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  if (width === 0 || height === 0) return;
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  painter ??= new Painter(Object.fromEntries(['card', 'tree', 'old', 'locked', 'hit', 'new', 'gone', 'away', 'disk'].map((name) => [name, rgb(colour(name))])));
  if (!settled) settled = !forest.step(matchMedia('(prefers-reduced-motion: reduce)').matches ? 1 : 0.22);
  const fading = painter.paint(canvas.getContext('2d', {alpha: false}), width, height, forest, view, time, selected);
  if (fading || !settled) draw();
}

function nodeAt(x, y) {
  const reach = Math.max(4 * pixelRatio(), view.scaleY / 2);
  let best = 0, distance = reach;
  for (const n of forest.order) {
    if (forest.tokens[n] === 0) continue;
    const from = view.x + forest.x0[n] * view.scaleX, to = view.x + forest.x1[n] * view.scaleX;
    if (x < from - 2 || x > to + 2) continue;
    const d = Math.abs(view.y + forest.y[n] * view.scaleY - y);
    if (d < distance) [best, distance] = [n, d];
  }
  return best;
}

function startPointer(canvas) {
  const pointers = new Map();
  const place = (event) => [event.offsetX * pixelRatio(), event.offsetY * pixelRatio()];
  let moved = false;
  canvas.addEventListener('pointerdown', (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    moved = false;
  });
  canvas.addEventListener('pointermove', (event) => {
    const [x, y] = place(event), before = pointers.get(event.pointerId);
    if (!before) return select(nodeAt(x, y));
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, [x, y]);
    moved ||= Math.hypot(x - before[0], y - before[1]) > 1;
    if (other) {
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(x - other[0], y - other[1]);
      if (was > 0) zoom(is / was, other[0], other[1]);
      return;
    }
    view.x += x - before[0];
    view.y += y - before[1];
    view.fits = false;
    draw();
  });
  for (const name of ['pointerup', 'pointercancel']) {
    canvas.addEventListener(name, (event) => {
      pointers.delete(event.pointerId);
      if (name === 'pointerup' && !moved) select(nodeAt(...place(event)));
    });
  }
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    const factor = Math.exp(-event.deltaY * 0.0015);
    zoom(event.shiftKey ? 1 : factor, ...place(event), event.ctrlKey || event.shiftKey ? factor : 1);
  }, {passive: false});
}

function onKey(event) {
  const steps = {ArrowLeft: () => forest.parent[selected], ArrowRight: () => forest.children(selected)[0],
    ArrowUp: () => sibling(-1), ArrowDown: () => sibling(1)};
  const actions = {'+': () => zoom(1.5), '=': () => zoom(1.5), '-': () => zoom(1 / 1.5), 0: fit, Enter: () => describe(selected)};
  if (steps[event.key]) {
    if (!selected || !forest.live[selected]) selected = forest.order[0] ?? 0;
    else select(steps[event.key]() || selected);
  } else if (actions[event.key]) {
    actions[event.key]();
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
  draw();
}

// The node beside it with the same parent; at the last one, the next in order.
function sibling(by) {
  const family = forest.parent[selected] ? forest.children(forest.parent[selected]) : [...forest.names.keys()];
  const at = family.indexOf(selected) + by;
  if (family[at]) return family[at];
  const order = [...forest.order];
  return order[order.indexOf(selected) + by];
}

const describeSoon = debounce(120, (n) => { if (n === selected) describe(n); });

function select(n) {
  if (n === selected) return;
  selected = n;
  draw();
  if (n) describeSoon(n);
}

async function describe(n) {
  if (!n || !forest.live[n]) return;
  const details = $('tree-details');
  if (forest.parent[n] === 0) {
    details.textContent = `Root of ${forest.names.get(n) ? `the namespace ${forest.names.get(n)}` : 'what requests without a key share'}: ${forest.children(n).length} branches.`;
    return;
  }
  const places = [forest.tiers[n] & HOST && 'in host memory', forest.tiers[n] & STORAGE && 'in storage'].filter(Boolean).join(' and ');
  if (!forest.resident[n]) {
    details.textContent = `Evicted from the device, kept ${places}: tokens ${forest.end[n] - forest.tokens[n] + 1} to ${forest.end[n]}, ${forest.children(n).length} branches.`;
    return;
  }
  try {
    const node = await get(`cache_tree/${n}`, {admin: true});
    if (n !== selected) return;
    const use = node.num_locks > 0 ? `in use by ${node.num_locks}` : `last used ${node.now - node.last_use} operations ago`;
    const copies = places && `, a copy ${places}`;
    const more = node.num_tokens > node.tokens.length ? ' …' : '';
    details.textContent = `Node ${n}: tokens ${node.end - node.num_tokens + 1} to ${node.end}, ${use}${copies}, ${forest.children(n).length} branches: “${node.text ?? node.tokens.join(' ')}${more}”`;
  } catch (error) {
    if (n === selected) details.textContent = error.message;
  }
}
