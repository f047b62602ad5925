// Charts of /metrics and a timeline of /requests, once a second while they are shown.
import {$, colour, count, duration, fitCanvas, legend, make} from './dom.js';
import {get, getText} from './api.js';

const POLL_MS = 1000, POINTS = 120, SPAN_S = 60;
const charts = [
  {name: 'Output tokens a second', read: (now, before, s) => rate(now, before, s, 'sglang:generation_tokens_total'), text: (v) => count(v)},
  {name: 'Prompt tokens a second', read: (now, before, s) => rate(now, before, s, 'sglang:prompt_tokens_total'), text: (v) => count(v)},
  {name: 'Running requests', read: (now) => now.values.get('sglang:num_running_reqs'), text: (v) => count(v)},
  {name: 'Waiting requests', read: (now) => now.values.get('sglang:num_queue_reqs'), text: (v) => count(v)},
  {name: 'First token, median', read: (now, before) => quantile(now, before, 'sglang:time_to_first_token_seconds', 0.5), text: duration},
  {name: 'First token, 99 of 100', read: (now, before) => quantile(now, before, 'sglang:time_to_first_token_seconds', 0.99), text: duration},
  {name: 'Between tokens, median', read: (now, before) => quantile(now, before, 'sglang:inter_token_latency_seconds', 0.5), text: duration},
  {name: 'Prompt tokens from the cache', read: (now, before) => share(now, before), text: (v) => `${(v * 100).toFixed(0)} %`, max: 1},
  {name: 'KV memory: in use and cached', read: (now) => (now.values.get('sglang:num_used_tokens') + now.values.get('sglang:kv_evictable_tokens')) / now.values.get('sglang:max_total_num_tokens'), text: (v) => `${(v * 100).toFixed(0)} %`, max: 1},
];
let shown = false, polling = false, before = null, log = new Map(), failed = '';

export function startMonitor() {
  for (const chart of charts) {
    chart.points = [];
    chart.value = make('div', {class: 'now'}, '–');
    chart.canvas = make('canvas', {'aria-hidden': 'true'});
    $('charts').append(make('div', {class: 'chart'}, make('div', {class: 'name'}, chart.name), chart.value, chart.canvas));
  }
  legend($('timeline-legend'), [['queue', 'waits'], ['prefill', 'prompt'], ['decode', 'answer'], ['gone', 'ended by an error or an abort']]);
  document.addEventListener('visibilitychange', poll);
  document.addEventListener('themechange', () => { if (shown) draw(); });
}

export function setMonitorShown(on) {
  shown = on;
  if (on) poll();
}

// {values: name -> sum over labels, buckets: name -> [[le, count]]}
export function parseMetrics(text) {
  const values = new Map(), buckets = new Map();
  for (const line of text.split('\n')) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const [, name, labels, number] = match, le = labels && /\ble="([^"]+)"/.exec(labels);
    if (le && name.endsWith('_bucket')) {
      const base = name.slice(0, -7);
      if (!buckets.has(base)) buckets.set(base, []);
      buckets.get(base).push([le[1] === '+Inf' ? Infinity : Number(le[1]), Number(number)]);
    } else {
      values.set(name, (values.get(name) ?? 0) + Number(number));
    }
  }
  return {values, buckets};
}

const difference = (now, before, name) => now.values.get(name) - before.values.get(name);
const rate = (now, before, seconds, name) => before ? difference(now, before, name) / seconds : null;

function share(now, before) {
  if (!before) return null;
  const prompt = difference(now, before, 'sglang:prompt_tokens_total');
  return prompt > 0 ? difference(now, before, 'sglang:cached_tokens_total') / prompt : null;
}

// Of what was observed between two readings, within its bucket by proportion; null: nothing.
export function quantile(now, before, name, q) {
  const is = now.buckets.get(name), was = before?.buckets.get(name);
  if (!is || !was) return null;
  const counts = is.map(([le, n], i) => [le, n - (was[i]?.[1] ?? 0)]);
  const total = counts.at(-1)[1];
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (const [le, n] of counts) {
    if (n >= q * total) return le === Infinity ? low : low + (le - low) * (q * total - below) / Math.max(1, n - below);
    low = le;
    below = n;
  }
  return low;
}

async function poll() {
  if (polling) return;
  polling = true;
  while (shown && !document.hidden) {
    try {
      const now = {...parseMetrics(await getText('metrics')), at: performance.now()};
      const seconds = before ? (now.at - before.at) / 1e3 : 0;
      for (const chart of charts) {
        chart.points.push(chart.read(now, before, seconds) ?? null);
        if (chart.points.length > POINTS) chart.points.shift();
      }
      before = now;
      await readRequests();
      failed = '';
    } catch (error) {
      failed = error.message;
    }
    draw();
    await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
  }
  polling = false;
}

async function readRequests() {
  const answer = await get('requests', {admin: true});
  const now = performance.now() / 1e3, next = new Map();
  const at = (ago) => ago === null ? null : now - ago;
  for (const each of answer.requests) {
    // Times of an earlier reading stay, so that bars do not tremble.
    const arrived = log.get(each.number)?.arrived ?? at(each.arrived_s_ago);
    const shift = arrived - at(each.arrived_s_ago);
    const time = (ago) => ago === null ? null : at(ago) + shift;
    next.set(each.number, {...each, arrived, scheduled: time(each.scheduled_s_ago), first: time(each.first_token_s_ago), ended: time(each.ended_s_ago)});
  }
  log = next;
}

function draw() {
  for (const chart of charts) drawChart(chart);
  drawTimeline();
  drawTable();
}

function drawChart({points, value, canvas, text, max}) {
  const last = points.at(-1);
  value.textContent = last === null || last === undefined ? '–' : text(last);
  const [width, height] = fitCanvas(canvas);
  const context = canvas.getContext('2d');
  context.clearRect(0, 0, width, height);
  const top = max ?? Math.max(1e-9, ...points.map((v) => v ?? 0)) * 1.1;
  const x = (i) => width - (points.length - 1 - i) * width / (POINTS - 1);
  const y = (v) => height - 2 - v / top * (height - 6);
  context.fillStyle = colour('line');
  context.fillRect(0, height - 1, width, 1);
  context.fillStyle = colour('quiet');
  context.font = '11px system-ui, sans-serif';
  if (points.some((v) => v > 0)) context.fillText(text(top), 0, 10);
  context.strokeStyle = colour('accent');
  context.lineWidth = 2;
  context.beginPath();
  let open = false;
  points.forEach((v, i) => {
    if (v === null) { open = false; return; }
    if (open) context.lineTo(x(i), y(v));
    else context.moveTo(x(i), y(v));
    open = true;
  });
  context.stroke();
  context.fillStyle = colour('accent');
  points.forEach((v, i) => { if (v !== null && points[i - 1] == null && points[i + 1] == null) context.fillRect(x(i) - 1.5, y(v) - 1.5, 3, 3); });
}

// Each request in the first row that is free at its arrival.
function drawTimeline() {
  const canvas = $('timeline'), [width, height] = fitCanvas(canvas), context = canvas.getContext('2d');
  context.clearRect(0, 0, width, height);
  const now = performance.now() / 1e3, begin = now - SPAN_S;
  const x = (time) => (time - begin) / SPAN_S * width;
  const free = [], row = 14, colours = Object.fromEntries(['queue', 'prefill', 'decode', 'gone', 'line', 'quiet'].map((name) => [name, colour(name)]));
  context.fillStyle = colours.line;
  for (let s = 10; s < SPAN_S; s += 10) context.fillRect(x(now - s), 0, 1, height);
  for (const each of [...log.values()].sort((a, b) => a.arrived - b.arrived)) {
    const end = each.ended ?? now;
    if (end < begin) continue;
    let lane = free.findIndex((until) => until <= each.arrived);
    if (lane < 0) lane = free.length;
    free[lane] = end + SPAN_S * 2 / width;
    const y = 6 + lane * row;
    if (y + row > height) continue;
    const bar = (from, to, fill) => {
      if (from === null) return;
      context.fillStyle = fill;
      context.fillRect(x(from), y, Math.max(1.5, x(to) - x(from)), row - 4);
    };
    bar(each.arrived, each.scheduled ?? end, colours.queue);
    bar(each.scheduled, each.first ?? end, colours.prefill);
    bar(each.first, end, each.end === 'abort' || each.end === 'error' ? colours.gone : colours.decode);
  }
}

function drawTable() {
  const body = $('requests').tBodies[0];
  if (failed) {
    body.replaceChildren(make('tr', {}, make('td', {colspan: 7, class: 'error'}, failed)));
    return;
  }
  const now = performance.now() / 1e3;
  const list = [...log.values()].sort((a, b) => (a.ended === null ? 0 : 1) - (b.ended === null ? 0 : 1) || b.number - a.number).slice(0, 30);
  body.replaceChildren(...list.map((each) => {
    const state = each.end || (each.first !== null ? 'answers' : each.scheduled !== null ? 'reads' : 'waits');
    const cells = [each.rid, state, each.prompt_tokens, each.cached_tokens, each.completion_tokens,
      each.first === null ? '–' : duration(each.first - each.arrived), duration((each.ended ?? now) - each.arrived)];
    return make('tr', {}, ...cells.map((cell) => make('td', {}, String(cell))));
  }));
}
