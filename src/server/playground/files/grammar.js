// The grammar explainer: what a grammar compiles to, and a picture of its automata.
import {$, make, setState} from './dom.js';
import {post} from './api.js';
import {checkGrammar, parseSchema} from './schema.js';
import {useGrammar} from './completion.js';

const examples = {
  json_schema: '{\n  "type": "object",\n  "properties": {\n    "name": {"type": "string"},\n    "age": {"type": "integer"}\n  },\n  "required": ["name", "age"]\n}',
  regex: '(yes|no|maybe)( indeed)?[.!]',
  ebnf: 'root ::= "(" list ")"\nlist ::= item (", " item)*\nitem ::= [a-z]+ | "(" list ")"',
};
let picture = null;  // the blob's URL

export function startGrammar(show) {
  const kind = $('grammar-kind'), text = $('grammar-text');
  const check = checkGrammar(text, $('grammar-state'), () => kind.value);
  text.value = examples[kind.value];
  kind.addEventListener('change', () => {
    if (Object.values(examples).includes(text.value) || text.value.trim() === '') text.value = examples[kind.value];
    check();
  });
  $('grammar-form').addEventListener('submit', (event) => { event.preventDefault(); explain(); });
  $('grammar-use').addEventListener('click', () => {
    useGrammar(kind.value, text.value);
    show('completion');
  });
}

async function explain() {
  const kind = $('grammar-kind').value, text = $('grammar-text').value;
  try {
    const made = await post('v1/grammar/explain', {[kind]: kind === 'json_schema' ? parseSchema(text) : text}, {show: true});
    setState($('grammar-state'), `Compiled in ${(made.seconds * 1e3).toFixed(1)} ms`, 'good');
    const facts = {Rules: made.rules, States: made.states, Edges: made.edges, 'Byte classes': made.byte_classes,
      'Every text begins with': made.forced || '(nothing certain)', 'Names of rules': made.rule_names.slice(0, 40).join(', ')};
    $('grammar-facts').replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, String(value))]));
    if (picture) URL.revokeObjectURL(picture);
    picture = URL.createObjectURL(new Blob([made.svg], {type: 'image/svg+xml'}));
    $('grammar-picture').replaceChildren(make('img', {src: picture, alt: `Automata of the grammar: ${made.rules} rules, ${made.states} states`}));
  } catch (error) {
    setState($('grammar-state'), error.message, 'bad');
    $('grammar-facts').replaceChildren();
    $('grammar-picture').replaceChildren();
  }
}
