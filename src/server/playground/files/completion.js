// Plain completion of a prompt by /generate, under a grammar or none, with branches from any token.
import {$, number} from './dom.js';
import {post, stream} from './api.js';
import {appendTokens, generatedTokens, tokenLegend} from './tokens.js';
import {checkGrammar, parseSchema} from './schema.js';
import {Versions, speedText} from './versions.js';

let versions = new Versions();
let running = null;
let check = () => {};

export function startCompletion() {
  tokenLegend($('legend-completion'));
  $('completion-form').addEventListener('submit', (event) => { event.preventDefault(); run(); });
  $('completion-stop').addEventListener('click', stopCompletion);
  $('completion-keep').addEventListener('click', keep);
  check = checkGrammar($('completion-grammar'), $('completion-grammar-state'), () => $('completion-kind').value);
  $('completion-kind').addEventListener('change', check);
  $('completion-prompt').addEventListener('input', () => { versions = new Versions(); });
}

export const stopCompletion = () => running?.abort();

export function useGrammar(kind, text) {
  $('completion-kind').value = kind;
  $('completion-grammar').value = text;
  $('completion-grammar-fold').open = true;
  check();
}

function keep() {
  if (!versions.shown || running) return;
  $('completion-prompt').value += versions.shown.text;
  versions = new Versions();
  draw();
}

function sampling() {
  const out = {temperature: number($('completion-temperature'), 1), top_p: number($('completion-top-p'), 1), max_new_tokens: number($('completion-max'), 64)};
  const seed = number($('completion-seed'), null);
  if (seed !== null) out.seed = seed;
  return out;
}

// branch: {ids, tokens}: the prompt's ids, and the tokens that are kept of an answer.
async function run(branch = null) {
  if (running) return;
  const version = {text: '', tokens: [...(branch?.tokens ?? [])], error: '', prompt: $('completion-prompt').value, ids: branch?.ids};
  versions.add(version);
  const body = {sampling_params: sampling(), return_logprob: true, top_logprobs_num: 5, return_text_in_logprobs: true, return_token_origins: true};
  const had = version.tokens.length;
  const started = performance.now();
  let first = 0, usage = null;
  running = new AbortController();
  setRunning(true);
  try {
    const kind = $('completion-kind').value, grammar = $('completion-grammar').value;
    if (kind && grammar.trim() && !branch) body.sampling_params[kind] = kind === 'json_schema' ? JSON.stringify(parseSchema(grammar)) : grammar;
    if (branch) body.input_ids = [...branch.ids, ...branch.tokens.map((token) => token.id)];
    else body.text = version.prompt;
    const before = version.tokens.map((token) => token.text).join('');
    version.text = before;
    let streamed = '';
    for await (const event of stream('generate', body, {signal: running.signal})) {
      streamed = event.text.startsWith(streamed) ? event.text : streamed + event.text;
      version.text = before + streamed;
      version.tokens.push(...generatedTokens(event, version.tokens.length - had));
      if (!first && version.tokens.length > had) first = performance.now();
      usage = {prompt: event.meta_info.prompt_tokens, cached: event.meta_info.cached_tokens};
      version.speed = speedText(started, first, performance.now(), version.tokens.length - had, usage);
      draw();
    }
  } catch (error) {
    if (error.name !== 'AbortError') version.error = error.message;
  } finally {
    running = null;
    setRunning(false);
  }
  draw();
}

async function branch(index, alternative) {
  if (running) return;
  const version = versions.shown;
  try {
    version.ids ??= (await post('tokenize', {prompt: version.prompt})).tokens;
    const kept = version.tokens.slice(0, alternative ? index : index + 1);
    if (alternative) kept.push({...version.tokens[index], ...alternative, origin: 'sampled', taken: true});
    await run({ids: version.ids, tokens: kept});
  } catch (error) {
    version.error = error.message;
    draw();
  }
}

function setRunning(on) {
  $('completion-run').disabled = on;
  $('completion-stop').disabled = !on;
}

let drawn = null;
function draw() {
  const output = $('completion-output'), version = versions.shown;
  if (drawn !== version) output.replaceChildren();
  drawn = version;
  $('completion-versions').replaceChildren(versions.bar(draw));
  if (!version) return;
  appendTokens(output, version.tokens, branch);
  $('completion-status').textContent = version.error || version.speed || '';
  $('completion-status').classList.toggle('error', version.error !== '');
}
