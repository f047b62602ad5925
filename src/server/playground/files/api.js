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

// The last call as text that runs elsewhere. Keys are not in it, and pictures are named as files.
const dataUrl = /^data:image\/(\w+);base64,/;

// The body with "picture-1.png" and so on in place of data URLs, each of which is named once.
function withoutPictures(body, asFile) {
  const names = new Map();
  const walk = (value) => {
    if (typeof value === 'string' && dataUrl.test(value)) {
      if (!names.has(value)) names.set(value, `picture-${names.size + 1}.${value.match(dataUrl)[1].replace('jpeg', 'jpg')}`);
      return asFile(names.get(value), value.match(dataUrl)[0]);
    }
    if (Array.isArray(value)) return value.map(walk);
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, walk(each)]));
  };
  return walk(body);
}

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl({method, path, body}) {
  const key = keys.user ? ` \\\n  -H "Authorization: Bearer $ESPALIER_API_KEY"` : '';
  if (body === undefined) return `curl ${quote(root + path)}${key}`;
  const streams = body.stream ? ' -N' : '';
  // The shell puts the files in: their quotes end the text's and begin it again.
  const pictures = [];
  const shown = withoutPictures(body, (name, head) => `${head}\uE000${pictures.push(name) - 1}\uE001`);
  const data = quote(JSON.stringify(shown, null, 2))
    .replace(/\uE000(\d+)\uE001/g, (_, i) => `'"$(base64 < ${pictures[i]} | tr -d '\\n')"'`);
  // A command's argument is of 128 KiB at most, so a picture goes through a pipe.
  const head = `curl${streams} -X ${method} ${quote(root + path)} \\\n  -H 'Content-Type: application/json'${key}`;
  if (pictures.length === 0) return `${head} \\\n  -d ${data}`;
  return `# ${[...new Set(pictures)].join(', ')}: the pictures of the messages\nprintf %s ${data} |\n${head} \\\n  -d @-`;
}

class Expression {  // of Python
  constructor(text) { this.text = text; }
}

function python(value, indent = 0) {
  const pad = '    '.repeat(indent + 1), end = '    '.repeat(indent);
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (value instanceof Expression) return value.text;
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

export function asPython({method, path, body: whole}) {
  const body = whole && withoutPictures(whole, (name, head) => new Expression(`${JSON.stringify(head)} + read(${JSON.stringify(name)})`));
  const pictures = JSON.stringify(body) !== JSON.stringify(whole);
  const modules = pictures ? 'base64, ' : '';
  const read = pictures ? '\ndef read(path):\n    with open(path, "rb") as file:\n        return base64.b64encode(file.read()).decode()\n\n' : '';
  const key = keys.user ? 'os.environ["ESPALIER_API_KEY"]' : '"none"';
  if (path === 'v1/chat/completions' && body.messages) {
    const known = Object.entries(body).filter(([name]) => standard.has(name));
    const more = Object.entries(body).filter(([name]) => !standard.has(name));
    const lines = known.map(([name, value]) => `    ${name}=${python(value, 1)},`);
    if (more.length) lines.push(`    extra_body=${python(Object.fromEntries(more), 1)},`);
    const print = body.stream
      ? 'for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)'
      : 'print(answer.choices[0].message.content)';
    return `import ${modules}os\nfrom openai import OpenAI\n${read}\nclient = OpenAI(base_url="${root}v1", api_key=${key})\nanswer = client.chat.completions.create(\n${lines.join('\n')}\n)\n${print}`;
  }
  const plain = body && {...body};
  if (plain) delete plain.stream;
  const auth = keys.user ? `, "Authorization": "Bearer " + ${key}` : '';
  const data = plain === undefined ? '' : `    data=json.dumps(${python(plain, 1)}).encode(),\n`;
  return `import ${modules}json, os, urllib.request\n${read}\nrequest = urllib.request.Request(\n    "${root}${path}",\n    method="${method}",\n    headers={"Content-Type": "application/json"${auth}},\n${data})\nwith urllib.request.urlopen(request) as answer:\n    print(json.load(answer))`;
}
