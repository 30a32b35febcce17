// The status comes once a second from an event stream. Without a stream, it is polled every two seconds. Most of the
// page shows the latest status.

const POLL_MS = 2000;
const STALE_MS = 5000;
const STREAM_AGAIN_MS = 10000;
// A service may mount the page under a path of its own.
const BASE = location.pathname.replace(/\/$/, '');
// The bearer token, if one is configured. It is forgotten with the tab.
const TOKEN = 'headcount-token';

const el = id => document.getElementById(id);
const grouped = new Intl.NumberFormat('en', { useGrouping: true });
const number = value => grouped.format(value).replaceAll(',', '\u202f');
const percent = part => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
// Formats a time of day: with the date if it is not today, and with seconds if a sample is shorter than 60 s.
function time(at, grainSeconds = 60) {
  const date = new Date(at);
  const second = grainSeconds < 60 ? '2-digit' : undefined;
  const clock = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second, hourCycle: 'h23' });
  return date.toDateString() === new Date().toDateString() ? clock : `${date.toLocaleDateString([], { day: 'numeric', month: 'short' })}, ${clock}`;
}

function ago(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function set(id, text) {
  const node = el(id);
  if (node.textContent !== text) node.textContent = text;
}

function cell(kind, text, className = '') {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

// Fills a table. Each cell of a row is a text, or a list of a text and a class.
function fill(table, rows) {
  // An unchanged table keeps the reader's place.
  const told = JSON.stringify(rows);
  if (table.dataset.told === told) return;
  table.dataset.told = told;
  table.replaceChildren(...rows.map(row => {
    const line = document.createElement('tr');
    line.append(...row.map(it => cell('td', ...[it].flat())));
    return line;
  }));
}

// --- requests ---

async function ask(path, options = {}) {
  // No form of another site can send this header.
  const headers = { ...options.headers, ...(options.method ? { 'x-headcount-change': '1' } : {}) };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  // Ends the request if no answer begins within this time. The body of an answer, such as a stream, may take longer.
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(new Error('no answer in time')), STALE_MS);
  const answer = await fetch(BASE + path, { ...options, headers, cache: 'no-store', signal: patience.signal }).finally(() => clearTimeout(timer));
  if (answer.status === 401) {
    login(Boolean(token));
    throw new Error('a token is needed');
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(said.detail || `status ${answer.status}`), { status: answer.status });
  }
  return answer;
}

let waitingForToken = null;

function login(wrong) {
  sessionStorage.removeItem(TOKEN);
  el('board').hidden = true;
  el('login').hidden = false;
  // Only a wrong token changes the message; other requests without a token do not.
  if (wrong) set('login-error', 'That is not the token.');
  if (document.activeElement !== el('token')) el('token').focus();
  return waitingForToken ??= new Promise(resolve => {
    el('login-form').onsubmit = event => {
      event.preventDefault();
      set('login-error', '');
      sessionStorage.setItem(TOKEN, el('token').value.trim());
      el('token').value = '';
      waitingForToken = null;
      resolve();
    };
  });
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function connected(how) {
  set('connection', how);
}

// EventSource cannot send a bearer token, so the stream is read by hand.
async function follow() {
  const answer = await ask('/api/v1/events');
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  let events = 0;
  for (;;) {
    // A stream without events is broken.
    const read = await Promise.race([reader.read(), sleep(STALE_MS).then(() => null)]);
    if (read === null) {
      reader.cancel();
      throw new Error('the stream stands still');
    }
    if (read.done) return events;
    text += read.value;
    const whole = text.split('\n\n');
    text = whole.pop();
    for (const event of whole) {
      const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5)).join('\n');
      if (data) {
        events += 1;
        connected('live');
        show(JSON.parse(data));
      }
    }
  }
}

async function live() {
  let streamAgain = 0;
  for (;;) {
    if (waitingForToken) await waitingForToken;
    if (Date.now() >= streamAgain) {
      // A stream ends by itself now and then.
      if (await follow().catch(() => 0) > 0) continue;
      if (waitingForToken) continue;
      streamAgain = Date.now() + STREAM_AGAIN_MS;
    }
    try {
      show(await (await ask('/api/v1/status')).json());
      connected('polled every 2 s');
    } catch (error) {
      if (!waitingForToken) gone(error.message);
      // The server may offer a stream again when it is back.
      streamAgain = 0;
    }
    await sleep(POLL_MS);
  }
}

function gone(why) {
  connected(`no answer: ${why}`);
  document.body.dataset.stale = true;
  document.title = 'no answer · headcount';
  if (heard) set('mode-says', `· as of ${time(heard)}; the present state is unknown`);
}

// --- mode and active users ---

let status = null;
let heard = 0;
// What an earlier status said about decisions and uptime, and when it came.
let previous = null;

function show(next) {
  status = next;
  heard = Date.now();
  el('login').hidden = true;
  el('board').hidden = false;
  document.body.dataset.stale = false;
  const users = status.active_users;
  const shadow = status.enforcement === 'shadow';
  const doubts = reasons();
  document.body.dataset.mode = status.mode;
  set('node', status.node);
  set('mode-word', status.mode);
  document.body.dataset.blind = isBlind();
  set('throttled', shadow ? 'newcomers would be rejected' : 'newcomers rejected');
  set('mode-says', `· ${headline()}`);
  set('estimate', (users.saturated ? '> ' : '') + number(users.estimate));
  // In shadow mode everybody is admitted. The text after the number says what the limit would have done.
  set('of', status.simulated_users === undefined
    ? `active users of ${number(status.max_active_users)}`
    : `active users; a limit of ${number(status.max_active_users)} would have admitted ${number(status.simulated_users)} of them`);
  const part = users.estimate / status.max_active_users;
  el('gauge').setAttribute('aria-valuenow', Math.min(100, Math.round(100 * part)));
  el('gauge').setAttribute('aria-valuetext', `${percent(part)} of ${number(status.max_active_users)}`);
  el('gauge-fill').style.width = `${Math.min(100, 100 * part)}%`;
  el('gauge-resume').style.left = `${Math.min(100, 100 * status.resume_below / status.max_active_users)}%`;
  set('trend', `${percent(part)} full · ${number(users.low)} to ${number(users.high)} · ${trend()} · since ${time(status.mode_since)}`);
  document.title = `${status.mode} · ${number(users.estimate)} of ${number(status.max_active_users)} · headcount`;
  belief(doubts);
  override();
  facts();
  whatIf();
  nodes();
}

function trend() {
  const samples = history?.samples ?? [];
  const first = samples.findLast(sample => Date.parse(status.now) - Date.parse(sample.from) >= history.grain_seconds * 5000);
  const before = first ?? samples[0];
  if (!before || samples.length < 2) return 'no trend yet';
  const change = status.active_users.estimate - before.active_users;
  const within = ago(Math.max(1, (Date.parse(status.now) - Date.parse(before.from)) / 1000 - history.grain_seconds));
  if (change === 0) return `steady for ${within}`;
  return `${change > 0 ? '▲' : '▼'} ${number(Math.abs(change))} in ${within}`;
}

// Whether the rounds reach the store.
const isAlone = () => status.sync.store !== 'none' && !status.sync.ok;

// Whether the store is away or refuses writes. A store that loses values still gives seats.
const isUnusable = () => isAlone() && !status.sync.loses_values;

// How long this server may give away its seats.
function seatsLast() {
  if (isUnusable()) return 'while the store is away or refuses writes';
  return `until its next ${status.sync.leases_seats ? 'beat' : 'round'}`;
}

// How long no news between the rounds was exchanged, in seconds, if that is long and the store is there; otherwise null.
function silentNews() {
  const { ok, beat_every_seconds: every, last_beat_seconds: last } = status.sync;
  const since = last ?? status.uptime_seconds;
  return ok && every !== null && since > 5 + 2 * every ? since : null;
}

const isBlind = () => !status.sync.ok || Boolean(status.sync.write_refused) || status.ring.coverage < status.ring.slots + 1;

// What happens to newcomers, and why.
function headline() {
  const forced = status.override.until ? status.override : null;
  const until = forced && `until ${time(forced.until)}, by an override${forced.by ? ` of ${forced.by}` : ''}`;
  const would = status.enforcement === 'shadow' ? 'would be' : 'are';
  if (status.enforcement === 'off') return 'nothing is decided: enforcement is off';
  if (forced?.mode === 'open') return `everybody is admitted ${until}`;
  if (forced?.mode === 'throttling') return `newcomers ${would} rejected ${until}`;
  const gathering = status.line?.openings.find(it => it.state === 'gathering');
  if (gathering) return `no newcomer is admitted: they gather until ${time(gathering.at)}`;
  const rate = status.newcomers_per_minute ? `, at most ${number(status.newcomers_per_minute)} a minute` : '';
  if (status.mode === 'open') return `newcomers are admitted${rate}`;
  if (status.ring.coverage < status.ring.slots + 1) return `few newcomers ${would} admitted, until this server knows the active users`;
  // Seats that become free go to newcomers at once, or when throttling ends.
  if (lately?.newcomers > 0) return `newcomers ${would} admitted to free seats only`;
  return `newcomers ${would} rejected`;
}

function reasons() {
  const { sync, ring, ready, restarts } = status;
  const found = [];
  if (!ready) found.push('This server is not ready. Load balancers should send it no requests.');
  const lastRead = Date.parse(status.now) - 1000 * status.active_users.stale_seconds;
  if (sync.loses_values) found.push('The store loses what servers write: it evicts values, or somebody deletes them or puts older ones back. Servers may not know each other\'s users, so more users may be active than this number says.');
  else if (!sync.ok && !sync.write_refused) found.push(`The store has been away since ${time(lastRead)}: ${sync.last_error?.text ?? 'no answer'}`);
  if (sync.conflicts_in_a_row >= 10) found.push(`This server has lost the race to write ${number(sync.conflicts_in_a_row)} times in a row. Other servers learn late of its users.`);
  if (sync.write_refused) found.push(`The store refuses writes: ${sync.write_refused}`);
  if (silentNews() !== null) found.push('This server exchanges no news between its rounds. The other servers learn of its new users seconds late, and no server gives seats by lease.');
  if (sync.foreign_generation) found.push('Servers with another capacity, window or key use this namespace: a deploy, or a mistake. Servers with another slot length, or with a key that no server lists as an earlier one, share no users with this one.');
  if (ring.coverage < ring.slots + 1) found.push(`${ring.slots + 1 - ring.coverage} of ${ring.slots + 1} minutes are unknown. A user of these minutes may be taken for a newcomer.`);
  if (status.active_users.saturated) found.push('The filters are full, so the number of users has no upper bound. Raise window.capacity.');
  if (ring.false_positive_ratio > 0.01) found.push(`One newcomer in ${Number((1 / ring.false_positive_ratio).toPrecision(1))} is taken for an active user. Raise window.capacity.`);
  if (restarts.worker + restarts.rounds > 0) found.push(`Background work was restarted ${restarts.worker + restarts.rounds} times after a panic. The log has the reason.`);
  return found;
}

// Shows one line that says whether the number of active users is reliable, and the reasons for doubt below it.
function belief(doubts) {
  const { ring, sync, active_users: users } = status;
  const read = sync.store === 'none' ? '' : `, and the other servers were read ${ago(Math.max(1, Math.round(users.stale_seconds)))} ago`;
  set('belief', doubts.length ? 'This number is in doubt:' : `This number is reliable: all ${ring.slots + 1} minutes are known${read}.`);
  el('belief').className = doubts.length ? 'bad' : '';
  // A screen reader reads new items aloud. Items that stay are not replaced, so that it does not read them again.
  const list = el('alarms');
  for (const item of [...list.children]) if (!doubts.includes(item.textContent)) item.remove();
  doubts.forEach((text, place) => {
    const there = list.children[place];
    if (there?.textContent !== text) list.insertBefore(cell('li', text), there ?? null);
  });
}

function rates() {
  const now = { at: performance.now(), decisions: status.decisions, uptime: status.uptime_seconds };
  if (!previous || now.uptime < previous.uptime) {
    previous = now;
    return null;
  }
  const seconds = (now.at - previous.at) / 1000;
  if (seconds < 0.5) return null;
  const a = now.decisions, b = previous.decisions;
  previous = now;
  const rate = (...names) => Math.max(0, names.reduce((sum, name) => sum + a[name] - b[name], 0) / seconds);
  return {
    admitted: rate('seen', 'newcomer', 'warming', 'missing', 'exempt'),
    newcomers: rate('newcomer', 'warming'),
    rejected: rate('rejected', 'shadow_rejected'),
  };
}

let lately = null;

function facts() {
  lately = rates() ?? lately;
  const { sync, ring, decisions, active_users: users, delayed_refusals: delayed } = status;
  const perSecond = value => (value >= 10 ? number(Math.round(value)) : value.toFixed(1));
  const rejected = status.enforcement === 'shadow' ? 'would have been rejected' : 'rejected';
  const { seen, newcomer, warming, missing, exempt } = decisions;
  const here = lately
    ? `${perSecond(lately.admitted)} requests a second admitted, ${perSecond(lately.newcomers)} of them newcomers; ${perSecond(lately.rejected)} ${rejected}`
    : 'counting';
  const rows = [
    ['95 % interval', `${number(users.low)} to ${number(users.high)}`],
    ['Free seats', `${number(status.room)}; ${number(status.share)} of them for this server ${seatsLast()}`],
    ['This server', here],
    ['Since its start', `${number(seen + newcomer + warming + missing + exempt)} requests admitted, ${number(newcomer + warming)} of them newcomers; ${number(decisions.rejected + decisions.shadow_rejected)} ${rejected}`],
    ['Store', sync.store === 'none' ? 'none: a server alone' : `${sync.store}${sync.server ? ` at ${sync.server}` : ''}${sync.failovers > 0 ? ` (${number(sync.failovers)} ${sync.failovers === 1 ? 'failover' : 'failovers'})` : ''}, ${sync.loses_values ? 'loses values' : sync.ok ? `read ${ago(users.stale_seconds)} ago` : 'away'}, ${number(sync.nodes)} ${sync.nodes === 1 ? 'server' : 'servers'}`, !sync.ok],
    ['Rounds', sync.store === 'none' ? 'none' : `${number(sync.rounds)}, ${number(sync.conflicts)} in conflict, ${number(sync.failures)} failed`],
    ['News between rounds', sync.beat_every_seconds === null ? 'none' : `every ${sync.beat_every_seconds.toFixed(2)} s, ${sync.last_beat_seconds === null ? 'none answered yet' : `last ${ago(sync.last_beat_seconds)} ago`}, ${number(sync.beats_failed)} failed`, silentNews() !== null],
    ['Newcomers a minute', status.newcomers_per_minute ? `at most ${number(status.newcomers_per_minute)} in the whole fleet` : 'as many as there are seats'],
    ['Seats by lease', sync.leases_seats ? `${number(sync.seats_granted)} granted to this server; ${number(sync.fleet_free_seats)} free in the whole fleet` : isUnusable() ? 'none while the store is away or refuses writes' : 'none: seats come with the rounds'],
    ['Refusals that waited', delayed.begun + delayed.at_once === 0 ? 'none' : `${number(delayed.begun)}, ${number(delayed.recognized)} of them admitted after all; ${number(delayed.waiting)} waiting now; ${number(delayed.at_once)} sent at once, because too many waited`],
    ['Known minutes', `${ring.coverage} of ${ring.slots + 1} ${{ 60: 'minutes', 1: 'seconds' }[ring.slot_seconds] ?? `slots of ${ring.slot_seconds} s`}`, ring.coverage < ring.slots + 1],
    ['False positives', ring.false_positive_ratio < 1e-9 ? 'less than 1 in a billion' : `1 in ${number(Math.round(1 / ring.false_positive_ratio))}`, ring.false_positive_ratio > 0.01],
    ['Other generations', sync.foreign_generation ? 'yes' : 'none', sync.foreign_generation],
    ['Uptime', `${ago(status.uptime_seconds)}, version ${status.version}`],
  ];
  const { line } = status;
  if (line) {
    const left = line.served + line.left;
    const abandoned = left > 0 ? `; ${Math.round(100 * line.left / left)} % of those who are gone left without a seat` : '';
    const pace = line.served_per_minute === null ? 'too few were served to know the pace' : `${number(Math.round(line.served_per_minute))} served a minute`;
    const waits = line.longest_wait_seconds === null ? '' : `; the longest wait is ${ago(line.longest_wait_seconds)}, the median ${ago(line.median_wait_seconds)}`;
    const whose = line.is_shared ? '' : ' at this server';
    const states = { announced: 'newcomers gather from', gathering: 'newcomers gather since', open: 'newcomers gathered from' };
    const openings = line.openings.map(it => `${time(it.at, 1)}, ${it.order === 'lottery' ? 'by lot' : 'by arrival'} (${states[it.state]} ${time(it.gathers_from, 1)})`);
    const ofClass = it => `${number(it.waiting)} wait, ${number(it.called)} of them called; ${number(it.served)} served${it.estimated_wait_seconds === null ? '' : `; who comes now is expected to wait ${ago(it.estimated_wait_seconds)}`}`;
    const classes = line.classes.map(it => [`Class ${it.name}, weight ${it.weight}`, ofClass(it)]);
    rows.splice(2, 0,
      ['Openings', openings.join('; ') || 'none'],
      ['Line', line.waiting === 0 ? `nobody waits${whose}` : `${number(line.waiting)} wait${whose}, ${number(line.called)} of them called${waits}`],
      ['Pace of the line', `${pace}${abandoned}; the waiters send at most ${number(Math.ceil(line.requests_per_second_at_most))} requests a second`],
      ['Called so far', line.mark === null ? 'nobody' : `who came until ${time(line.mark, 1)}`],
      ...classes);
  }
  const list = el('facts');
  if (list.children.length !== 2 * rows.length) {
    list.replaceChildren(...rows.flatMap(([name]) => [cell('dt', name), document.createElement('dd')]));
  }
  rows.forEach(([, text, bad], place) => {
    const value = list.children[2 * place + 1];
    if (value.textContent !== text) value.textContent = text;
    value.className = bad ? 'bad' : '';
  });
}

function nodes() {
  const known = status.sync.seen_nodes ?? [];
  el('nodes-box').hidden = known.length === 0;
  const others = status.sync.ok ? 'in step' : 'unknown';
  const state = ({ alive }) => (alive === false ? ['silent', 'bad'] : others);
  fill(el('nodes'), known.map(node => [node.node, state(node), `${ago(node.read_seconds_ago)} ago`]));
}

function whatIf() {
  const known = status.what_if ?? [];
  el('what-if').hidden = known.length === 0;
  fill(el('what-if-rows'), known.map(it => [
    number(it.max_active_users), percent(it.max_active_users / status.max_active_users), number(it.active_users),
    it.first_attempts ? `${percent(it.refused / it.first_attempts)} (${number(it.refused)} of ${number(it.first_attempts)})` : 'none yet',
  ]));
}

// --- history ---

const SPANS = [['window', 0], ['3 h', 180], ['24 h', 1440]];
let span = 0;
let history = null;

function minutes() {
  // The history has one day at most.
  return SPANS[span][1] || Math.min(1440, status ? status.active_users.window_seconds / 60 : 30);
}

function spans() {
  el('spans').replaceChildren(...SPANS.map(([name], place) => {
    const button = cell('button', name);
    button.type = 'button';
    button.setAttribute('aria-pressed', place === span);
    button.onclick = () => {
      span = place;
      spans();
      el('spans').children[place].focus();
      draw();
    };
    return button;
  }));
}

let drawing = false;

async function draw() {
  if (drawing || !status || el('board').hidden) return;
  drawing = true;
  await redraw().finally(() => { drawing = false; });
}

async function redraw() {
  const box = el('picture');
  // The page's font is larger on a large screen. The chart is scaled by the same factor.
  const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
  const width = Math.max(240, Math.round(box.clientWidth / scale));
  const height = Math.round(Math.min(Math.max(240, width * 0.5), 0.7 * window.innerHeight / scale));
  const query = new URLSearchParams({ minutes: minutes() });
  try {
    const told = await (await ask(`/api/v1/history?${query}`)).json();
    chart(box, told, { width, height, minutes: minutes(), now: status.now, read: readout });
    history = told;
    numbers();
  } catch (error) {
    set('caption', `This chart is old: ${error.message}`);
  }
}

// Shows the figures of the sample under the pointer, or nothing if there is none.
function readout(sample) {
  set('readout', sample
    ? `${time(sample.from, history.grain_seconds)}: ${number(sample.active_users)} active users (${number(sample.low)} to ${number(sample.high)}), limit ${number(sample.max_active_users)}; ${sample.admittedRate.toFixed(1)} admitted and ${sample.rejectedRate.toFixed(1)} rejected a second${sample.waiting === null ? '' : `; ${number(sample.waiting)} waiting in the line`}`
    : '');
}

function numbers() {
  const { samples, grain_seconds: grain } = history;
  if (samples.length === 0) {
    set('caption', 'There is no history yet.');
    return;
  }
  const most = samples.reduce((one, other) => (other.active_users > one.active_users ? other : one));
  const lasted = sample => Math.max(0.1, sample.seconds);
  const throttled = samples.reduce((sum, sample) => sum + sample.throttling * sample.seconds, 0);
  const rejected = status.enforcement === 'shadow' ? 'would have been rejected' : 'were rejected';
  const refused = samples.reduce((sum, sample) => sum + sample.rejected, 0);
  const never = `newcomers ${status.enforcement === 'shadow' ? 'would never have been' : 'were never'} rejected`;
  const despite = refused === 0 ? never : `${number(refused)} requests ${rejected} although there was room`;
  const long = throttled < 1 ? despite : `newcomers ${rejected} for ${ago(throttled)}`;
  set('caption', `Since ${time(samples[0].from, grain)}: at most ${number(most.active_users)} active users, at ${time(most.from, grain)}; ${long}.`);
  const hasLine = samples.some(sample => sample.waiting !== null);
  for (const id of ['waiting', 'waiting-head']) el(id).hidden = !hasLine;
  if (el('numbers').open) {
    fill(el('rows'), samples.toReversed().map(sample => [
      time(sample.from, grain), number(sample.active_users), number(sample.max_active_users), percent(sample.throttling),
      (sample.admitted / lasted(sample)).toFixed(1), number(sample.newcomers), (sample.rejected / lasted(sample)).toFixed(1),
      ...(hasLine ? [number(sample.waiting ?? 0)] : []),
    ]));
  }
}

// --- overrides ---

function override() {
  const now = status.override;
  const forced = { open: 'Everybody is admitted', throttling: 'No newcomer is admitted', auto: 'Newcomers are admitted while there are seats' }[now.mode];
  const inForce = Boolean(now.until);
  el('withdraw').hidden = !inForce;
  const x = now.max_active_users ? `, the limit is ${number(now.max_active_users)}` : '';
  const rate = now.newcomers_per_minute ? `, at most ${number(now.newcomers_per_minute)} newcomers a minute` : '';
  set('override', inForce
    ? `${forced}${x}${rate}, until ${time(now.until)}, set by ${now.by ?? 'somebody'}: ${now.reason ?? 'no reason given'}${now.warning ? `. ${now.warning}` : ''}`
    : 'None. Newcomers are admitted while there are seats.');
}

function sure(text) {
  set('confirm-text', text);
  const dialog = el('confirm');
  dialog.showModal();
  // The close event would be too late: it may arrive when the dialog is open again, with another question.
  return new Promise(resolve => {
    dialog.querySelector('form').onsubmit = event => resolve(event.submitter.value === 'yes');
    dialog.oncancel = () => resolve(false);
  });
}

// Which servers will obey an override.
const where = () => isAlone()
  ? 'On this server alone, because the store is away (each other server needs its own)'
  : 'On every server of the fleet';

async function steer(options, query = '') {
  set('steer-error', '');
  try {
    await ask(`/api/v1/override${query}`, options);
    show(await (await ask('/api/v1/status')).json());
  } catch (error) {
    set('steer-error', error.message);
  }
}

el('steer-form').onsubmit = async event => {
  event.preventDefault();
  const mode = new FormData(event.target).get('mode');
  const order = { mode, for: el('for').value };
  if (el('x').value) order.max_active_users = Number(el('x').value);
  if (el('per-minute').value) order.newcomers_per_minute = Number(el('per-minute').value);
  for (const name of ['by', 'reason']) if (el(name).value.trim()) order[name] = el(name).value.trim();
  const what = { open: 'EVERYBODY is admitted, whether there are seats or not', throttling: 'NO newcomer is admitted', auto: 'newcomers are admitted while there are seats' }[mode];
  const x = order.max_active_users ? `, with a limit of ${number(order.max_active_users)}` : '';
  const rate = order.newcomers_per_minute ? `, at most ${number(order.newcomers_per_minute)} newcomers a minute` : '';
  if (await sure(`${where()}, ${what}${x}${rate}, for ${order.for}.`)) {
    await steer({ method: 'PUT', body: JSON.stringify(order), headers: { 'content-type': 'application/json' } });
  }
};

el('withdraw').onclick = async () => {
  if (await sure(`${where()}, the override ends now.`)) {
    const by = el('by').value.trim();
    await steer({ method: 'DELETE' }, by ? `?${new URLSearchParams({ by })}` : '');
  }
};

// --- timers ---

spans();
setInterval(() => {
  if (heard && Date.now() - heard > STALE_MS && document.body.dataset.stale !== 'true') gone(`nothing since ${time(heard)}`);
}, 1000);
setInterval(draw, 2000);
let resized = null;
addEventListener('resize', () => { clearTimeout(resized); resized = setTimeout(draw, 200); });
el('numbers').ontoggle = () => { if (history) numbers(); };
(async () => {
  live();
  while (!status) await sleep(50);
  draw();
})();
