// An answer's versions: what "again" and branches make. Each has its own tokens; one is shown.
import {make} from './dom.js';

export class Versions {
  constructor() {
    this.list = [];
    this.at = -1;
  }
  add(version) {
    this.list.push(version);
    this.at = this.list.length - 1;
    return version;
  }
  get shown() { return this.list[this.at]; }

  // "‹ 2 of 3 ›"; nothing for a single one.
  bar(onChange) {
    if (this.list.length < 2) return make('span');
    const step = (by, name, sign) => make('button', {type: 'button', class: 'small', 'aria-label': name,
      onclick: () => { this.at = (this.at + by + this.list.length) % this.list.length; onChange(); }}, sign);
    return make('span', {class: 'row'}, step(-1, 'Version before', '‹'), `${this.at + 1} of ${this.list.length}`, step(1, 'Next version', '›'));
  }
}

// "38 tokens, 145 tok/s, first after 12 ms; prompt 10, 4 cached"
export function speedText(started, first, ended, tokens, usage) {
  const parts = [`${tokens} tokens`];
  if (first && tokens > 1 && ended > first) parts.push(`${((tokens - 1) / (ended - first) * 1e3).toFixed(1)} tok/s`);
  if (first) parts.push(`first after ${(first - started).toFixed(0)} ms`);
  if (usage) parts.push(`prompt ${usage.prompt}${usage.cached === undefined ? '' : `, ${usage.cached} cached`}`);
  return parts.join(', ');
}
