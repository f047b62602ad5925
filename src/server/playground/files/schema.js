// JSON Schema in the page: whether an answer is of a schema, also while it is being written; and
// whether the server takes the schema, which is asked as one types.
import {debounce, setState} from './dom.js';
import {post} from './api.js';

const typeOf = (value) => value === null ? 'null' : Array.isArray(value) ? 'array' :
  Number.isInteger(value) ? 'integer' : typeof value;
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function resolve(schema, root) {
  for (let i = 0; schema && schema.$ref && i < 32; ++i) {
    if (!schema.$ref.startsWith('#')) return true;
    schema = schema.$ref.slice(1).split('/').filter(Boolean)
      .reduce((at, part) => at?.[part.replaceAll('~1', '/').replaceAll('~0', '~')], root);
  }
  return schema ?? true;
}

// The first thing that is wrong with `value`, as text; null: nothing. `partial`: the value is the
// beginning of an answer, so what may still come is not missed. Keywords that are not known here
// are the server's to enforce.
export function validate(value, schema, {root = schema, path = '$', partial = false} = {}) {
  schema = resolve(schema, root);
  if (schema === true || schema === undefined) return null;
  if (schema === false) return `${path} may not be there`;
  const inner = (each, of, at) => validate(each, of, {root, path: at, partial});
  const type = typeOf(value);
  if (schema.type !== undefined) {
    const types = [].concat(schema.type);
    const fits = types.includes(type) || (type === 'integer' && types.includes('number'));
    if (!fits) return `${path} is ${type}, not ${types.join(' or ')}`;
  }
  if (!partial && schema.enum && !schema.enum.some((each) => same(each, value))) return `${path} is none of the values of enum`;
  if (!partial && 'const' in schema && !same(schema.const, value)) return `${path} is not ${JSON.stringify(schema.const)}`;
  for (const each of schema.allOf ?? []) {
    const wrong = inner(value, each, path);
    if (wrong) return wrong;
  }
  const matching = (list) => list.filter((each) => inner(value, each, path) === null).length;
  if (schema.anyOf && matching(schema.anyOf) === 0) return `${path} is of no alternative of anyOf`;
  if (schema.oneOf && (partial ? matching(schema.oneOf) === 0 : matching(schema.oneOf) !== 1)) return `${path} is of ${matching(schema.oneOf)} alternatives of oneOf`;
  if (type === 'string' && !partial) {
    const length = [...value].length;
    if (length < (schema.minLength ?? 0)) return `${path} is shorter than ${schema.minLength}`;
    if (length > (schema.maxLength ?? Infinity)) return `${path} is longer than ${schema.maxLength}`;
    if (schema.pattern !== undefined) {
      let pattern = null;
      try { pattern = new RegExp(schema.pattern, 'u'); } catch { /* of another dialect */ }
      if (pattern && !pattern.test(value)) return `${path} does not match ${schema.pattern}`;
    }
  }
  if (typeof value === 'number' && !partial) {
    if (value < (schema.minimum ?? -Infinity)) return `${path} is below ${schema.minimum}`;
    if (value > (schema.maximum ?? Infinity)) return `${path} is above ${schema.maximum}`;
    if (value <= (schema.exclusiveMinimum ?? -Infinity)) return `${path} is not above ${schema.exclusiveMinimum}`;
    if (value >= (schema.exclusiveMaximum ?? Infinity)) return `${path} is not below ${schema.exclusiveMaximum}`;
    if (schema.multipleOf && Math.abs(value / schema.multipleOf - Math.round(value / schema.multipleOf)) > 1e-9) return `${path} is no multiple of ${schema.multipleOf}`;
  }
  if (type === 'array') {
    if (!partial && value.length < (schema.minItems ?? 0)) return `${path} has fewer than ${schema.minItems} items`;
    if (value.length > (schema.maxItems ?? Infinity)) return `${path} has more than ${schema.maxItems} items`;
    if (schema.uniqueItems && new Set(value.map((each) => JSON.stringify(each))).size < value.length && !partial) return `${path} has equal items`;
    const prefix = schema.prefixItems ?? [];
    for (let i = 0; i < value.length; ++i) {
      const wrong = inner(value[i], i < prefix.length ? prefix[i] : schema.items, `${path}[${i}]`);
      if (wrong) return wrong;
    }
  }
  if (type === 'object') {
    const properties = schema.properties ?? {};
    if (!partial)
      for (const name of schema.required ?? []) if (!(name in value)) return `${path}.${name} is missing`;
    for (const [name, each] of Object.entries(value)) {
      const of = name in properties ? properties[name] : schema.additionalProperties;
      const wrong = inner(each, of, `${path}.${name}`);
      if (wrong) return wrong === `${path}.${name} may not be there` && partial ? null : wrong;
    }
  }
  return null;
}

// The beginning of a JSON text as a whole one, as far as it goes; undefined where nothing is known.
export function completed(text) {
  const stack = [];
  let inString = false, escaped = false, end = 0, ends = [];
  for (let i = 0; i < text.length; ++i) {
    const c = text[i];
    if (inString) {
      if (escaped) escaped = false;
      else if (c === '\\') escaped = true;
      else if (c === '"') inString = false;
      continue;
    }
    if (c === '"') inString = true;
    else if (c === '{' || c === '[') stack.push(c === '{' ? '}' : ']');
    else if (c === '}' || c === ']') stack.pop();
    if ('{[,}]'.includes(c)) {
      end = c === ',' ? i : i + 1;
      ends = [...stack];
    }
  }
  for (const [part, open] of [[text, stack], [text.slice(0, end), ends]]) {
    try {
      return JSON.parse(part + (part === text && inString ? '"' : '') + [...open].reverse().join(''));
    } catch { /* ends within a member */ }
  }
  return undefined;
}

export function parseSchema(text) {
  const schema = JSON.parse(text);
  if (typeof schema !== 'boolean' && typeOf(schema) !== 'object') throw new Error('a schema is an object or a boolean');
  return schema;
}

// Shows below a field what the server makes of the grammar in it, a moment after each change.
// kind(): the field of the request that it is; "" asks nothing.
export function checkGrammar(field, state, kind) {
  let asked = 0;
  const check = debounce(300, async () => {
    const number = ++asked, text = field.value, of = kind();
    if (!of || text.trim() === '') return setState(state, '');
    try {
      const grammar = of === 'json_schema' ? parseSchema(text) : text;
      const made = await post('v1/grammar/compile', {[of]: grammar});
      if (number !== asked) return;
      const begins = made.forced ? `; every text begins with ${made.forced}` : '';
      setState(state, `Compiles: ${made.rules} rules, ${made.states} states, ${(made.seconds * 1e3).toFixed(1)} ms${begins}`, 'good');
    } catch (error) {
      if (number === asked) setState(state, error.message, 'bad');
    }
  });
  field.addEventListener('input', check);
  return check;
}
