// The page: views, theme, keys, keyboard.
import {$} from './dom.js';
import {asCurl, asPython, keys, last, onCall} from './api.js';
import {startChat, stopChat} from './chat.js';
import {startCompletion, stopCompletion} from './completion.js';
import {startGrammar} from './grammar.js';
import {setMonitorShown, startMonitor} from './monitor.js';
import {hide} from './tokens.js';
import {setTreeShown, startTree} from './tree.js';

const views = ['chat', 'completion', 'tree', 'monitor', 'grammar'];

export function show(view, focus = false) {
  hide();
  for (const each of views) {
    const on = each === view;
    $(each).hidden = !on;
    $(`tab-${each}`).setAttribute('aria-selected', String(on));
    $(`tab-${each}`).tabIndex = on ? 0 : -1;
  }
  if (focus) $(`tab-${view}`).focus();
  if (location.hash !== `#/${view}`) history.replaceState(null, '', `#/${view}`);
  setTreeShown(view === 'tree');
  setMonitorShown(view === 'monitor');
}

function startTabs() {
  views.forEach((view, i) => {
    $(`tab-${view}`).addEventListener('click', () => show(view));
    $(`tab-${view}`).addEventListener('keydown', (event) => {
      const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (by) show(views[(i + by + views.length) % views.length], true);
    });
  });
  // "#/tree": with a slash it is the name of no element, to which the browser would scroll.
  const stated = () => views.find((view) => location.hash === `#/${view}`) ?? 'chat';
  addEventListener('hashchange', () => show(stated()));
  show(stated());
}

// Follows the system until the button says otherwise; the choice is the page's alone.
function startTheme() {
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  const apply = () => {
    document.documentElement.dataset.theme = chosen ?? (system.matches ? 'dark' : 'light');
    document.dispatchEvent(new Event('themechange'));
  };
  system.addEventListener('change', apply);
  $('theme-button').addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    apply();
  });
  apply();
}

let asWhat = asCurl;
function drawCode() {
  $('code-text').textContent = last ? asWhat(last) : 'Nothing yet: chat, complete, or explain a grammar first.';
  $('code-curl').setAttribute('aria-pressed', String(asWhat === asCurl));
  $('code-python').setAttribute('aria-pressed', String(asWhat === asPython));
}

function startCode() {
  onCall(drawCode);
  $('code-button').addEventListener('click', () => { drawCode(); $('code').showModal(); });
  $('code-curl').addEventListener('click', () => { asWhat = asCurl; drawCode(); });
  $('code-python').addEventListener('click', () => { asWhat = asPython; drawCode(); });
  $('code-copy').addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText($('code-text').textContent);
      $('code-copy').textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren($('code-text'));
      $('code-copy').textContent = 'Selected';
    }
    setTimeout(() => { $('code-copy').textContent = 'Copy'; }, 1500);
  });
}

function startKeys() {
  $('key-button').addEventListener('click', () => $('keys').showModal());
  $('help-button').addEventListener('click', () => $('help').showModal());
  $('key-user').addEventListener('input', (event) => { keys.user = event.target.value; });
  $('key-admin').addEventListener('input', (event) => { keys.admin = event.target.value; });
}

const shortcuts = {
  t: () => $('chat-tokens').click(), c: () => $('code-button').click(), k: () => $('key-button').click(),
  d: () => $('theme-button').click(), '?': () => $('help-button').click(),
};
views.forEach((view, i) => { shortcuts[String(i + 1)] = () => show(view, true); });

function startKeyboard() {
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      const form = event.target.closest?.('form');
      if (form && form.method !== 'dialog') {
        event.preventDefault();
        form.requestSubmit();
      }
      return;
    }
    if (event.key === 'Escape') {
      if (!$('pop').hidden) return hide();
      stopChat();
      stopCompletion();
      return;
    }
    const typing = event.target.closest?.('input, textarea, select, dialog');
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    const action = shortcuts[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

startTheme();
startChat();
startCompletion();
startTree();
startMonitor();
startGrammar(show);
startTabs();
startCode();
startKeys();
startKeyboard();
document.documentElement.dataset.ready = 'true';
performance.mark('ready');
