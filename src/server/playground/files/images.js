// Pictures of the next message: chosen, pasted or dropped, shown, and taken off again.
import {$, make, setState} from './dom.js';
import {get} from './api.js';

const kinds = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'image/bmp'];
const waiting = [];  // {name, url: the data URL that is sent, preview: the blob URL that is shown}
let takesPictures = null;  // whether the model does, once it has been asked

export function startImages() {
  $('chat-image').addEventListener('click', async () => { if (await allowed()) $('chat-image-file').click(); });
  $('chat-image-file').addEventListener('change', (event) => {
    add([...event.target.files]);
    event.target.value = '';
  });
  $('chat-input').addEventListener('paste', (event) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    add(files);
  });
  const zone = $('chat-conversation');
  const over = (on) => zone.classList.toggle('over', on);
  zone.addEventListener('dragover', (event) => {
    if (!event.dataTransfer.types.includes('Files')) return;
    event.preventDefault();
    over(true);
  });
  zone.addEventListener('dragleave', (event) => { if (!zone.contains(event.relatedTarget)) over(false); });
  zone.addEventListener('drop', (event) => {
    over(false);
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}

async function allowed() {
  try {
    takesPictures ??= await get('model_info');
  } catch (error) {
    setState($('chat-image-state'), error.message, 'bad');
    return false;
  }
  if (takesPictures.has_image_understanding) return true;
  setState($('chat-image-state'), `This model (${takesPictures.model_type}) reads text alone. Serve one that takes pictures, such as a LLaVA, to ask about them.`, 'bad');
  return false;
}

const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener('load', () => resolve(reader.result));
  reader.addEventListener('error', () => reject(reader.error));
  reader.readAsDataURL(file);
});

async function add(files) {
  if (!await allowed()) return;
  setState($('chat-image-state'), '');
  for (const file of files) {
    const name = file.name || 'picture';
    try {
      if (!kinds.includes(file.type)) throw new Error('it is no PNG, JPEG, WebP, GIF or BMP');
      waiting.push({name, url: await dataUrl(file), preview: URL.createObjectURL(file)});
    } catch (error) {
      setState($('chat-image-state'), `${name} is not taken: ${error.message}`, 'bad');
    }
  }
  draw();
  $('chat-input').focus();
}

function draw() {
  $('chat-images').replaceChildren(...waiting.map((each, i) => make('li', {},
    make('img', {src: each.preview, alt: each.name, title: each.name}),
    make('button', {type: 'button', class: 'small', 'aria-label': `Remove ${each.name}`, onclick: () => remove(i)}, '✕'))));
}

function remove(i) {
  URL.revokeObjectURL(waiting.splice(i, 1)[0].preview);
  draw();
  $('chat-input').focus();
}

export const anyImages = () => waiting.length > 0;

// The pictures, which are the caller's from here on: they go with the message.
export function takeImages() {
  const out = waiting.splice(0);
  draw();
  setState($('chat-image-state'), '');
  return out;
}

// What a message with pictures is to the API.
export const withImages = (text, images) => images.length === 0 ? text
  : [...images.map(({url}) => ({type: 'image_url', image_url: {url}})), ...(text ? [{type: 'text', text}] : [])];

export const imageRow = (images) => images.length === 0 ? null
  : make('div', {class: 'attached'}, ...images.map((each) => make('img', {src: each.preview, alt: each.name, title: each.name})));

export const forget = (images) => images.forEach(({preview}) => URL.revokeObjectURL(preview));
