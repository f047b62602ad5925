// The chat: turns, pictures, streamed answers with their tokens, tools, JSON Schema, branches.
import {$, make, number, setState} from './dom.js';
import {get, post, stream} from './api.js';
import {anyImages, forget, imageRow, startImages, takeImages, withImages} from './images.js';
import {appendTokens, chatToken, tokenLegend} from './tokens.js';
import {checkGrammar, completed, parseSchema, validate} from './schema.js';
import {Versions, speedText} from './versions.js';

const turns = [];  // {role, content, images, element} or {role: 'assistant', versions, element}, {role: 'tool', ...}
let running = null;  // AbortController
let model = '';

$('chat-schema').value = JSON.stringify({type: 'object', properties: {name: {type: 'string'}, age: {type: 'integer', minimum: 0}, tags: {type: 'array', items: {type: 'string'}, maxItems: 3}}, required: ['name', 'age'], additionalProperties: false}, null, 2);
$('chat-tools').value = JSON.stringify([{type: 'function', function: {name: 'get_weather', description: 'The weather in a city', parameters: {type: 'object', properties: {city: {type: 'string'}}, required: ['city'], additionalProperties: false}}}], null, 2);

export function startChat() {
  tokenLegend($('legend-chat'));
  get('v1/models').then((list) => {
    model = list.data[0].id;
    $('model').textContent = model;
  }).catch((error) => { $('model').textContent = error.message; });
  startImages();
  $('chat-form').addEventListener('submit', (event) => { event.preventDefault(); send(); });
  $('chat-stop').addEventListener('click', stopChat);
  $('chat-clear').addEventListener('click', () => {
    stopChat();
    turns.forEach((turn) => forget(turn.images ?? []));
    turns.length = 0;
    $('messages').replaceChildren();
    setState($('chat-answer-state'), '');
  });
  $('chat-again').addEventListener('click', again);
  $('chat-tokens').addEventListener('change', () => turns.forEach(draw));
  const check = checkGrammar($('chat-schema'), $('chat-schema-state'), () => 'json_schema');
  $('chat-schema').addEventListener('toggle', check);
  $('chat-schema-on').addEventListener('change', check);
  $('chat-tools').addEventListener('input', readTools);
}

export const stopChat = () => running?.abort();

function readTools() {
  try {
    const tools = JSON.parse($('chat-tools').value);
    if (!Array.isArray(tools)) throw new Error('tools are a list');
    const names = tools.map((tool) => tool.function?.name);
    if (names.some((name) => !name)) throw new Error('each tool is {"type": "function", "function": {"name": ...}}');
    setState($('chat-tools-state'), names.join(', '), 'good');
    return tools;
  } catch (error) {
    setState($('chat-tools-state'), error.message, 'bad');
    return null;
  }
}

function settings() {
  const body = {
    model, temperature: number($('chat-temperature'), 1), top_p: number($('chat-top-p'), 1), max_tokens: number($('chat-max'), 256),
    logprobs: true, top_logprobs: 5, return_token_origins: true, stream_options: {include_usage: true},
  };
  const seed = number($('chat-seed'), null);
  if (seed !== null) body.seed = seed;
  return body;
}

function messagesUntil(turn) {
  const out = [];
  const system = $('chat-system').value.trim();
  if (system) out.push({role: 'system', content: system});
  for (const each of turns) {
    if (each === turn) break;
    if (each.role !== 'assistant') {
      out.push({role: each.role, content: withImages(each.content, each.images ?? []), ...(each.callId ? {tool_call_id: each.callId} : {})});
      continue;
    }
    const version = each.versions.shown;
    const message = {role: 'assistant', content: version.text};
    if (version.calls.length) message.tool_calls = version.calls.map((call) => ({id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments}}));
    out.push(message);
  }
  return out;
}

function add(turn) {
  turn.element = make('article', {class: `message ${turn.role}`});
  $('messages').append(turn.element);
  turns.push(turn);
  draw(turn);
  return turn;
}

async function send() {
  if (running) return;
  const text = $('chat-input').value.trim();
  if (text === '' && !anyImages()) return $('chat-input').focus();
  $('chat-input').value = '';
  add({role: 'user', content: text, images: takeImages()});
  await answer(add({role: 'assistant', versions: new Versions()}));
}

function again() {
  const turn = turns.findLast((each) => each.role === 'assistant');
  if (!running && turn) answer(turn);
}

// A new version of a turn. branch: {promptIds, tokens}: goes on behind these.
async function answer(turn, branch = null) {
  turns.splice(turns.indexOf(turn) + 1).forEach((later) => later.element.remove());
  const version = turn.versions.add({text: '', reasoning: '', calls: [], tokens: [...(branch?.tokens ?? [])], error: '', finish: '', speed: ''});
  const body = settings();
  try {
    if ($('chat-tools-on').checked) {
      const tools = readTools();
      if (!tools) throw new Error('the tools are not valid JSON');
      body.tools = tools;
      body.tool_choice = branch ? 'auto' : $('chat-tool-choice').value;
    }
    if ($('chat-schema-on').checked && !branch) {
      body.response_format = {type: 'json_schema', json_schema: {name: 'answer', schema: parseSchema($('chat-schema').value)}};
      version.schema = body.response_format.json_schema.schema;
    }
    version.messages = messagesUntil(turn);
    version.tools = body.tools;
    if (branch) {
      body.input_ids = [...branch.promptIds, ...branch.tokens.map((token) => token.id)];
      version.text = textOf(branch.tokens);
      version.promptIds = branch.promptIds;
    }
    // With a branch they only bring the pictures that its tokens refer to.
    if (!branch || version.messages.some((message) => Array.isArray(message.content))) body.messages = version.messages;
  } catch (error) {
    version.error = error.message;
    return draw(turn);
  }
  await receive(turn, version, body);
}

async function receive(turn, version, body) {
  running = new AbortController();
  setRunning(true);
  const started = performance.now(), had = version.tokens.length;
  let first = 0, usage = null;
  try {
    for await (const chunk of stream('v1/chat/completions', body, {signal: running.signal})) {
      if (chunk.usage) usage = {prompt: chunk.usage.prompt_tokens, cached: chunk.usage.prompt_tokens_details?.cached_tokens};
      const choice = chunk.choices[0];
      if (!choice) continue;
      take(version, choice);
      if (!first && version.tokens.length > had) first = performance.now();
      version.speed = speedText(started, first, performance.now(), version.tokens.length - had, usage);
      drawSoon(turn);
    }
    version.speed = speedText(started, first, performance.now(), version.tokens.length - had, usage);
  } catch (error) {
    if (error.name === 'AbortError') version.finish = 'stopped';
    else version.error = error.message;
  } finally {
    running = null;
    setRunning(false);
  }
  draw(turn);
}

function take(version, choice) {
  const delta = choice.delta;
  version.text += delta.content ?? '';
  version.reasoning += delta.reasoning_content ?? '';
  for (const piece of delta.tool_calls ?? []) {
    const call = version.calls[piece.index] ??= {id: piece.id, name: '', arguments: '', result: null};
    call.name += piece.function.name ?? '';
    call.arguments += piece.function.arguments ?? '';
  }
  for (const entry of choice.logprobs?.content ?? []) version.tokens.push(chatToken(entry));
  if (choice.finish_reason) version.finish = choice.finish_reason;
}

const textOf = (tokens) => new TextDecoder().decode(new Uint8Array(tokens.filter((token) => !/^<[|｜]/.test(token.text)).flatMap((token) => token.bytes ?? [])));

async function branch(turn, index, alternative) {
  if (running) return;
  const version = turn.versions.shown;
  try {
    version.promptIds ??= (await post('tokenize', {messages: version.messages, ...(version.tools ? {tools: version.tools} : {})})).tokens;
    const kept = version.tokens.slice(0, alternative ? index : index + 1);
    if (alternative) {
      kept.push({...version.tokens[index], text: alternative.text, id: alternative.id, logprob: alternative.logprob, origin: 'sampled',
        bytes: [...new TextEncoder().encode(alternative.text)], taken: true});
    }
    await answer(turn, {promptIds: version.promptIds, tokens: kept});
  } catch (error) {
    version.error = error.message;
    draw(turn);
  }
}

function setRunning(on) {
  $('chat-send').disabled = on;
  $('chat-stop').disabled = !on;
  $('chat-status').textContent = on ? 'Answering …' : '';
}

const due = new Set();
function drawSoon(turn) {
  if (due.size === 0) requestAnimationFrame(() => { due.forEach(draw); due.clear(); });
  due.add(turn);
}

function draw(turn) {
  const box = $('messages');
  const follows = box.scrollTop + box.clientHeight > box.scrollHeight - 60;
  if (turn.role === 'assistant') drawAnswer(turn);
  else if (turn.role === 'tool') turn.element.replaceChildren(make('div', {class: 'who'}, `result of ${turn.name}`), make('div', {class: 'text'}, turn.content));
  else turn.element.replaceChildren(make('div', {class: 'who'}, 'You'), imageRow(turn.images) ?? '', make('div', {class: 'text'}, turn.content));
  if (follows) box.scrollTop = box.scrollHeight;
}

function drawAnswer(turn) {
  const version = turn.versions.shown;
  if (!version) return;
  const asTokens = $('chat-tokens').checked;
  if (turn.drawn !== version || turn.asTokens !== asTokens) {
    turn.drawn = version;
    turn.asTokens = asTokens;
    turn.parts = {who: make('div', {class: 'who'}), reasoning: make('div', {class: 'reasoning'}), text: make('div', {class: 'text'}), calls: make('div'), error: make('div', {class: 'error'})};
    turn.element.replaceChildren(...Object.values(turn.parts));
  }
  const parts = turn.parts;
  parts.who.replaceChildren('Answer', turn.versions.bar(() => { draw(turn); showValidity(turn.versions.shown); }),
    make('span', {}, version.speed), make('span', {}, version.finish && version.finish !== 'stop' ? `ended by ${version.finish}` : ''));
  parts.reasoning.hidden = asTokens || version.reasoning === '';
  parts.reasoning.textContent = version.reasoning;
  if (asTokens) appendTokens(parts.text, version.tokens, (index, alternative) => branch(turn, index, alternative));
  else parts.text.textContent = version.text;
  if (parts.calls.childElementCount !== version.calls.length || version.finish) drawCalls(turn, version, parts.calls);
  parts.error.textContent = version.error;
  showValidity(version);
}

function showValidity(version) {
  const state = $('chat-answer-state');
  if (!version.schema) return setState(state, '');
  const value = completed(version.text);
  if (value === undefined) return setState(state, version.finish ? 'The answer is not JSON.' : '', version.finish ? 'bad' : '');
  const whole = version.finish === 'stop';
  const wrong = validate(value, version.schema, {partial: !whole});
  if (wrong) setState(state, `The answer is not valid: ${wrong}`, 'bad');
  else setState(state, whole ? 'The answer is valid.' : 'Valid as far as it goes.', 'good');
}

function drawCalls(turn, version, element) {
  if (element.contains(document.activeElement)) return;
  element.replaceChildren(...version.calls.map((call) => {
    let shown = call.arguments;
    try { shown = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* not complete yet */ }
    const result = make('textarea', {rows: 2, class: 'code', 'aria-label': `Result of ${call.name}`, placeholder: 'What the function returned'});
    result.value = call.result ?? '';
    result.addEventListener('input', () => { call.result = result.value; });
    return make('div', {class: 'call'}, make('strong', {}, call.name), make('pre', {}, shown), ...(version.finish ? [result] : []));
  }));
  const open = turns.at(-1) === turn && version.finish && version.calls.length > 0;
  if (open) element.append(make('div', {class: 'row'}, make('button', {type: 'button', class: 'main', onclick: () => sendResults(turn, version)}, 'Send results')));
}

async function sendResults(turn, version) {
  if (running) return;
  for (const call of version.calls) add({role: 'tool', name: call.name, callId: call.id, content: call.result || 'null'});
  draw(turn);
  await answer(add({role: 'assistant', versions: new Versions()}));
}
