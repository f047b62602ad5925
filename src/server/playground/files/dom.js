// Small helpers for the page. Text is set as text, never as HTML: what a model writes is data.

export const $ = (id) => document.getElementById(id);

// make('button', {class: 'small', onclick: f, 'aria-label': 'x'}, child, 'text', ...)
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'class') element.className = value;
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function debounce(ms, call) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), ms);
  };
}

export function setState(element, text, kind = '') {
  element.textContent = text;
  element.className = `state ${kind}`;
}

export const number = (input, otherwise) =>
  input.value.trim() === '' || Number.isNaN(Number(input.value)) ? otherwise : Number(input.value);

export const count = (n) => n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e4 ? `${(n / 1e3).toFixed(0)} k` : `${Math.round(n)}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return '–';
  return seconds < 1 ? `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
}

// The value of a CSS variable, "light-dark(#..., #...)", for canvases.
export function colour(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  return value.match(/#[0-9a-f]+/g)[document.documentElement.dataset.theme === 'dark' ? 1 : 0];
}

// [red, green, blue] of "#rrggbb" or "#rgb".
export function rgb(hex) {
  const h = hex.length === 4 ? [...hex.slice(1)].map((c) => c + c).join('') : hex.slice(1);
  return [0, 2, 4].map((i) => parseInt(h.slice(i, i + 2), 16));
}

export function legend(element, entries) {
  element.replaceChildren(...entries.map(([name, text]) => {
    const mark = make('span', {class: 'mark', 'aria-hidden': 'true'});
    mark.style.background = `var(--${name})`;
    return make('span', {}, mark, text);
  }));
}

// Sizes a canvas to its box in device pixels. Returns [width, height] of the box.
export function fitCanvas(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const w = Math.max(1, Math.round(width * scale)), h = Math.max(1, Math.round(height * scale));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.getContext('2d').setTransform(scale, 0, 0, scale, 0, 0);
  return [width, height];
}
