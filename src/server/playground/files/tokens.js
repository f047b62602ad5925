// Tokens of an answer, coloured by where they come from, with their alternatives and branches.
import {$, legend, make} from './dom.js';

// A token: {text, id, logprob, origin, top: [{text, id, logprob}]}.

export const tokenLegend = (element) => legend(element,
  [['card', 'sampled'], ['forced', 'forced by the grammar'], ['drafted', 'drafted, then verified'], ['gone', 'underlined: below 10 %']]);

// Of an entry of logprobs.content in a chat.
export function chatToken(entry) {
  return {
    text: entry.token, id: entry.token_id, logprob: entry.logprob, origin: entry.origin ?? 'sampled', bytes: entry.bytes,
    top: entry.top_logprobs.map((each) => ({text: each.token, id: each.token_id, logprob: each.logprob})),
  };
}

// What is new in an event of /generate, behind the `have` tokens that are known.
export function generatedTokens(event, have) {
  const meta = event.meta_info;
  const entries = meta.output_token_logprobs ?? [];
  const first = (meta.output_token_logprobs_length ?? entries.length) - entries.length;
  const out = [];
  for (let i = Math.max(0, have - first); i < entries.length; ++i) {
    const [logprob, id, text] = entries[i];
    out.push({
      text, id, logprob, origin: meta.output_token_origins?.[i] ?? 'sampled',
      top: (meta.output_top_logprobs?.[i] ?? []).map(([lp, otherId, otherText]) => ({text: otherText, id: otherId, logprob: lp})),
    });
  }
  return out;
}

const percent = (logprob) => {
  const p = Math.exp(logprob) * 100;
  return p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : p >= 0.001 ? `${p.toFixed(3)} %` : 'below 0.001 %';
};
export const visible = (text) => text === '' ? '(empty)' : text.replaceAll('\n', '⏎').replaceAll('\t', '⇥').replaceAll(' ', '␣');

function classOf(token) {
  const classes = ['t', token.origin];
  if (token.logprob < Math.log(0.1) && token.origin !== 'forced') classes.push('unlikely');
  if (/^<[|｜].*[|｜]>$|^<\/?s>$/.test(token.text)) classes.push('special');
  if (token.taken) classes.push('taken');
  return classes.join(' ');
}

// Pointing at a token shows its probability and alternatives while the mouse is there or in what is
// shown; a click or Enter keeps that open, with the focus in it.

// Appends tokens to `element`, which keeps how many it shows. onBranch(index, alternative): the user
// wants an answer that has the alternative at that place; null: the same token again.
export function appendTokens(element, tokens, onBranch) {
  const part = document.createDocumentFragment();
  for (let i = element.childElementCount; i < tokens.length; ++i) {
    const token = tokens[i];
    const span = make('span', {class: classOf(token), tabindex: '0', role: 'button',
      'aria-label': `${visible(token.text)}, ${token.origin}, ${percent(token.logprob)}`}, token.text);
    span.addEventListener('mouseenter', () => {
      clearTimeout(timer);
      timer = setTimeout(() => show(span, token, i, onBranch, false), 120);  // not while the mouse only passes
    });
    span.addEventListener('mouseleave', leave);
    span.addEventListener('click', () => show(span, token, i, onBranch, true));
    span.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      show(span, token, i, onBranch, true);
    });
    part.append(span);
  }
  element.append(part);
}

let pinned = null, timer = 0;

function show(span, token, index, onBranch, pin) {
  if (pinned && !pin) return;
  clearTimeout(timer);
  const pop = $('pop');
  const choose = (alternative) => {
    hide();
    onBranch(index, alternative);
  };
  // What a grammar forbids has no probability.
  const alternatives = token.top.filter((each) => each.logprob > -9000).map((each) => {
    const meter = make('meter', {min: 0, max: 1, value: Math.exp(each.logprob), 'aria-hidden': 'true'});
    return make('button', {type: 'button', class: 'alt', title: 'Branch here with this token', onclick: () => choose(each)},
      make('code', {}, visible(each.text)), make('span', {}, percent(each.logprob)), meter);
  });
  pop.replaceChildren(
    make('div', {}, make('strong', {}, make('code', {}, visible(token.text))), ` ${percent(token.logprob)}, ${token.origin}`),
    make('div', {class: 'quiet'}, `token ${token.id ?? '?'} at ${index + 1}, log-probability ${token.logprob.toFixed(3)}`),
    make('div', {class: 'quiet'}, 'Branch from here with:'), ...alternatives,
    make('div', {class: 'row'}, make('button', {type: 'button', class: 'small', onclick: () => choose(null)}, 'Go on behind this token'),
      pin ? make('button', {type: 'button', class: 'small', onclick: () => { hide(); span.focus(); }}, 'Close') : null));
  pop.hidden = false;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const width = pop.offsetWidth, height = pop.offsetHeight;
  const left = Math.min(Math.max(8, box.left), document.documentElement.clientWidth - width - 8);
  const below = box.bottom + height + 8 < window.innerHeight || box.top < height + 8;
  pop.style.left = `${left + window.scrollX}px`;
  pop.style.top = `${(below ? box.bottom + 6 : box.top - height - 6) + window.scrollY}px`;
  if (!pin) return;
  pinned = span;
  pop.querySelector('button')?.focus();
}

function leave() {
  clearTimeout(timer);
  if (!pinned) timer = setTimeout(hide, 120);
}

$('pop').addEventListener('mouseenter', () => clearTimeout(timer));
$('pop').addEventListener('mouseleave', leave);

export function hide() {
  pinned = null;
  $('pop').hidden = true;
}

document.addEventListener('pointerdown', (event) => {
  if (pinned && !$('pop').contains(event.target) && event.target !== pinned) hide();
});
