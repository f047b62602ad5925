// Calls of this server. Keys live in this module's memory and nowhere else.

export const keys = {user: '', admin: ''};
export let last = null;  // {method, path, body} of the last call worth showing
const root = new URL('.', document.baseURI).href;

const listeners = [];
export const onCall = (listener) => listeners.push(listener);

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(admin, hasBody) {
  const out = hasBody ? {'Content-Type': 'application/json'} : {};
  const key = (admin && keys.admin) || keys.user;
  if (key) out.Authorization = `Bearer ${key}`;
  return out;
}

async function failure(response) {
  const text = await response.text();
  let message = text;
  try {
    const parsed = JSON.parse(text);
    message = parsed.error?.message ?? parsed.message ?? text;
  } catch { /* not JSON: the text itself */ }
  const hint = response.status === 401 || response.status === 403 ? ' (enter a key: the button "Key")' : '';
  return new ApiError(response.status, `${response.status}: ${message}${hint}`);
}

async function call(method, path, body, {admin = false, signal, show = false} = {}) {
  if (show) {
    last = {method, path, body};
    for (const listener of listeners) listener(last);
  }
  const response = await fetch(root + path, {
    method, signal, headers: headers(admin, body !== undefined), credentials: 'omit',
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await failure(response);
  return response;
}

export const get = async (path, options) => (await call('GET', path, undefined, options)).json();
export const getText = async (path, options) => (await call('GET', path, undefined, options)).text();
export const post = async (path, body, options) => (await call('POST', path, body, options)).json();

// Each event of a stream, parsed; an event that is an error is thrown.
export async function* stream(path, body, options = {}) {
  const response = await call('POST', path, {...body, stream: true}, {...options, show: true});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      rest += value;
      for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
        const line = rest.slice(0, end).split('\n').find((each) => each.startsWith('data: '));
        if (!line) continue;
        const data = line.slice(6);
        if (data === '[DONE]') return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message ?? data);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The last call as text that runs elsewhere. Keys are not in it.
const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl({method, path, body}) {
  const key = keys.user ? ` \\\n  -H "Authorization: Bearer $ESPALIER_API_KEY"` : '';
  if (body === undefined) return `curl ${quote(root + path)}${key}`;
  const streams = body.stream ? ' -N' : '';
  return `curl${streams} -X ${method} ${quote(root + path)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quote(JSON.stringify(body, null, 2))}`;
}

function python(value, indent = 0) {
  const pad = '    '.repeat(indent + 1), end = '    '.repeat(indent);
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (Array.isArray(value)) {
    const flat = `[${value.map((each) => python(each, indent)).join(', ')}]`;
    if (flat.length < 70 || value.every((each) => typeof each === 'number')) return flat;
    return `[\n${value.map((each) => pad + python(each, indent + 1)).join(',\n')},\n${end}]`;
  }
  if (typeof value === 'object') {
    const entries = Object.entries(value);
    if (entries.length === 0) return '{}';
    return `{\n${entries.map(([k, v]) => `${pad}${JSON.stringify(k)}: ${python(v, indent + 1)}`).join(',\n')},\n${end}}`;
  }
  return JSON.stringify(value);
}

const standard = new Set(['model', 'messages', 'temperature', 'top_p', 'max_tokens', 'max_completion_tokens', 'seed',
  'stream', 'tools', 'tool_choice', 'response_format', 'logprobs', 'top_logprobs', 'stream_options', 'n', 'stop']);

export function asPython({method, path, body}) {
  const key = keys.user ? 'os.environ["ESPALIER_API_KEY"]' : '"none"';
  if (path === 'v1/chat/completions' && body.messages) {
    const known = Object.entries(body).filter(([name]) => standard.has(name));
    const more = Object.entries(body).filter(([name]) => !standard.has(name));
    const lines = known.map(([name, value]) => `    ${name}=${python(value, 1)},`);
    if (more.length) lines.push(`    extra_body=${python(Object.fromEntries(more), 1)},`);
    const read = body.stream
      ? 'for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)'
      : 'print(answer.choices[0].message.content)';
    return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${root}v1", api_key=${key})\nanswer = client.chat.completions.create(\n${lines.join('\n')}\n)\n${read}`;
  }
  const plain = body && {...body};
  if (plain) delete plain.stream;
  const auth = keys.user ? `, "Authorization": "Bearer " + ${key}` : '';
  const data = plain === undefined ? '' : `    data=json.dumps(${python(plain, 1)}).encode(),\n`;
  return `import json, os, urllib.request\n\nrequest = urllib.request.Request(\n    "${root}${path}",\n    method="${method}",\n    headers={"Content-Type": "application/json"${auth}},\n${data})\nwith urllib.request.urlopen(request) as answer:\n    print(json.load(answer))`;
}
