'use strict';
// A person at the admin page: looks, in both themes and three sizes; steers; asks with the keyboard alone.
// It waits for what it expects to see, each time with a deadline, and says what it measured.

const assert = require('node:assert/strict');
const http = require('node:http');
const path = require('node:path');
const { DEADLINE, clean, launch, until } = require('./browser.cjs');

const plan = JSON.parse(process.argv[2]);
const SIZES = [[375, 812], [1280, 800], [2560, 1440]];
const connections = new http.Agent({ keepAlive: true, maxSockets: 8 });

// Active users return several times a window; in each turn, some newcomers ask for the first time.
const players = [];
let came = 0;
let closed = false;

async function crowd() {
  for (let turn = 0; !closed; turn++) {
    const newcomers = Array.from({ length: players.length < 500 ? 6 : 3 }, () => `player-${came++}`);
    const back = players.filter((_, nth) => nth % 100 === turn % 100);
    await Promise.all(back.map((player, nth) => check((turn + nth) % 3, player)));
    const answers = await Promise.all(newcomers.map((player, nth) => check(nth % 3, player)));
    players.push(...newcomers.filter((_, nth) => answers[nth] === 200));
    await new Promise(resolve => setTimeout(resolve, 100));
  }
}

function check(server, token) {
  return checkAt(plan.servers[server].check, token);
}

function checkAt(url, token) {
  return new Promise((resolve, reject) => {
    const options = { agent: connections, headers: { authorization: `Bearer ${token}` } };
    http.get(`${url}/v1/check`, options, answer => {
      answer.resume();
      answer.on('end', () => resolve(answer.statusCode));
    }).on('error', reject);
  });
}

const text = (page, id) => page.locator(`#${id}`).innerText();
const fact = (page, name) => page.locator(`#facts dt:text-is("${name}") + dd`);
const alarms = page => page.locator('#alarms li').allInnerTexts();
const TREND = /(▲|▼) \d+ in \d|steady for \d/;

async function look(browser, url, name, colorScheme, [width, height], told, ready = () => true) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height }, reducedMotion: 'reduce' });
  const page = await context.newPage();
  const complaints = [];
  page.on('console', message => { if (message.type() === 'error') complaints.push(message.text()); });
  page.on('pageerror', error => complaints.push(String(error)));
  await page.goto(url);
  await page.locator('#picture svg').waitFor({ timeout: DEADLINE });
  await page.waitForFunction(() => document.getElementById('connection').textContent === 'live', null, { timeout: DEADLINE });
  if (width === 375) {
    for (const id of ['mode', 'count', 'trend']) {
      const box = await page.locator(`#${id}`).boundingBox();
      assert.ok(box.y + box.height <= 400, `${name}: #${id} ends at ${box.y + box.height} px`);
    }
  }
  await until(`${name}: what the picture shows`, () => ready(page));
  await measure(page, `${name}-${colorScheme}-${width}`, told);
  assert.deepEqual(complaints, [], `${name}: the browser complains`);
  await context.close();
}

// A page as it is, on a phone by night and on a desk by day.
async function inspect(page, name, told) {
  for (const [colorScheme, [width, height]] of [['dark', SIZES[0]], ['light', SIZES[1]]]) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ width, height });
    await until(`${name}: the picture to fit`, () => page.evaluate(fits));
    await measure(page, `${name}-${colorScheme}-${width}`, told);
  }
}

// In the page: an old picture stays as it is.
function fits() {
  const picture = document.querySelector('[data-stale=false] #picture svg');
  return !picture || Math.abs(picture.viewBox.baseVal.width - picture.parentElement.clientWidth) < 2;
}

async function measure(page, name, told) {
  const [scrolls, width] = await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    return [scrollWidth - clientWidth, clientWidth];
  });
  assert.equal(scrolls, 0, `${name}: scrolls sideways by ${scrolls} px`);
  await clean(page, name, told);
  await page.screenshot({ path: path.join(plan.shots, `${name}.png`), fullPage: width < 2560 });
}

// Notes what a screen reader is given to say from now on.
async function listen(page) {
  await page.evaluate(() => {
    globalThis.aloud = [];
    const note = changes => aloud.push(...changes.flatMap(change => [...change.addedNodes].map(node => node.textContent)));
    for (const live of document.querySelectorAll('[aria-live]')) new MutationObserver(note).observe(live, { childList: true, subtree: true });
  });
}

// What it was given since the last time.
const aloud = page => page.evaluate(() => globalThis.aloud.splice(0));

async function confirm(page) {
  await page.locator('#confirm').waitFor({ state: 'visible', timeout: DEADLINE });
  await page.locator('#confirm-yes').click();
}

(async () => {
  const browser = await launch();
  const told = { axe: 0 };
  try {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    const page = await context.newPage();
    await page.goto(plan.servers[0].admin);
    await until('the page to be live', async () => await text(page, 'connection') === 'live');
    assert.match(await text(page, 'mode'), /OPEN/i);

    // Whether the number can be believed.
    await until('a reliable number', async () => /^This number is reliable: all 31 minutes are known/.test(await text(page, 'belief')));
    await until('nothing to look at', async () => (await alarms(page)).length === 0);
    await until('three servers in step', async () => {
      const nodes = await page.locator('#nodes tr').allInnerTexts();
      return nodes.length === 3 && nodes.every((row, nth) => new RegExp(`^game-${nth + 1}\\s+in step\\s+[\\d.]+ s ago$`).test(row));
    });
    for (const [name, value] of [
      ['95 % interval', /^\d+ to \d+$/], ['Free seats', /^500; \d+ of them for this server/], ['This server', /requests a second admitted, .* of them newcomers; .* rejected/],
      ['Since its start', /^0 requests admitted, 0 of them newcomers; 0 rejected$/], ['Store', /^redis at 127\.0\.0\.1:\d+, read [\d.]+ s ago, 3 servers$/],
      ['Rounds', /^\d+, \d+ in conflict, 0 failed$/], ['Known minutes', /^31 of 31 slots of 1\.5 s$/], ['False positives', /^less than 1 in a billion$/],
      ['Other generations', /^none$/], ['Uptime', /^[\d.]+ s, version \d/],
      ['News between rounds', /^every \d\.\d\d s, last [\d.]+ s ago, \d+ failed$/], ['Refusals that waited', /^none$/],
      ['Seats by lease', /^\d+ granted to this server; 500 free in the whole fleet$/],
    ]) await until(`${name}: ${value}`, async () => value.test(await fact(page, name).innerText()));

    // The fleet fills, and the page says so.
    const playing = crowd();
    await until('the trend upwards', async () => /▲ \d+ in \d+/.test(await text(page, 'trend')));
    await until('the fleet to be full', async () => /throttling/i.test(await text(page, 'mode')));
    await until('a newcomer to be rejected everywhere', async () =>
      (await Promise.all([0, 1, 2].map(server => check(server, `newcomer-${came++}`)))).every(status => status === 429));
    await until('the title to say so', async () => /throttling/.test(await page.title()));
    await until('the refusals to have waited', async () =>
      /^[1-9]\d*, \d+ of them admitted after all; \d+ waiting now; \d+ sent at once/.test(await fact(page, 'Refusals that waited').innerText()));
    await until('seats to be granted', async () =>
      /^[1-9]\d* granted to this server; \d+ free in the whole fleet$/.test(await fact(page, 'Seats by lease').innerText()));
    // A line through many samples, a band where newcomers are rejected, and where it ends.
    const drawn = async page => {
      const samples = await page.locator('#picture polyline.users').evaluateAll(([line]) => line?.points.length ?? 0);
      const bands = await page.locator('#picture rect.band').count();
      return samples > 8 && bands === 1 && TREND.test(await text(page, 'trend'));
    };
    await until('the picture to fill', () => drawn(page));
    await until('the values under the pointer', async () => {
      const { x, y, width, height } = await page.locator('#picture svg').boundingBox();
      await page.mouse.move(x + 0.97 * width, y + height / 2);
      return /^\d\d:\d\d:\d\d: \d+ active users \(\d+ to \d+\), limit 500; [\d.]+ admitted and [\d.]+ rejected a second$/.test(await text(page, 'readout'));
    });
    await page.mouse.move(0, 0);
    for (const scheme of ['light', 'dark']) for (const size of SIZES) await look(browser, plan.servers[0].admin, 'throttling', scheme, size, told, drawn);
    await page.locator('#numbers summary').click();
    await until('the numbers', async () => await page.locator('#rows tr').count() > 8);
    assert.match(await page.locator('#rows tr').nth(1).innerText(), /^\d\d:\d\d:\d\d\s+\d{3}\s+500\s+100 %/);
    await inspect(page, 'numbers', told);
    await page.locator('#numbers summary').click();
    await listen(page);

    // Another X for a while: as many more are admitted, on every server.
    await page.locator('#x').fill('600');
    await page.locator('#for').selectOption('5m');
    await page.locator('#by').fill('ann');
    await page.locator('#reason').fill('one more machine');
    await page.locator('#set').click();
    await page.locator('#confirm-text').waitFor({ state: 'visible', timeout: DEADLINE });
    assert.match(await text(page, 'confirm-text'), /while there are seats, with a limit of 600, for 5m/);
    const asked = Date.now();
    await confirm(page);
    await until('the new X', async () => /^active users of 600$/.test(await text(page, 'of')));
    const ends = Date.parse((await (await page.request.get(`${plan.servers[0].admin}/api/v1/override`)).json()).until);
    assert.ok(Math.abs(ends - asked - 300_000) < 5000, `five minutes are ${ends - asked} ms`);
    const clock = new Date(ends).toLocaleTimeString('en', { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
    const words = await text(page, 'override');
    assert.ok(/while there are seats, the limit is 600, until .*, set by ann: one more machine$/.test(words) && words.includes(`${clock},`), words);
    await until('newcomers to be admitted, up to it', async () => Number(await text(page, 'estimate')) >= 590);
    await until('a newcomer to be rejected again', async () =>
      (await Promise.all([0, 1, 2].map(server => check(server, `newcomer-${came++}`)))).every(status => status === 429));
    told.with_600 = Number(await text(page, 'estimate'));
    assert.ok(told.with_600 <= 612, `${told.with_600} are in`);
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('the configured X', async () => /None/.test(await text(page, 'override')) && /of 500$/.test(await text(page, 'of')));
    await until('the fleet to be above X', async () => /throttling.*newcomers are rejected/i.test(await text(page, 'mode')));
    await page.locator('#x').fill('');
    await aloud(page);

    // A word through the page: everybody in.
    await page.locator('input[name=mode][value=open]').check();
    await page.locator('#by').fill('ann');
    await page.locator('#reason').fill('<b>launch</b>');
    await page.locator('#set').click();
    await page.locator('#confirm-text').waitFor({ state: 'visible', timeout: DEADLINE });
    assert.match(await text(page, 'confirm-text'), /every server/);
    const set = Date.now();
    await confirm(page);
    const reached = await Promise.all([0, 1, 2].map(async server => {
      await until(`server ${server} to let newcomers in`, async () => await check(server, `late-${server}-${came++}`) === 200);
      return Date.now() - set;
    }));
    told.override_ms = reached;
    assert.ok(Math.max(...reached) <= 2000, `the override took ${reached} ms to reach three servers`);
    await until('the page to say so', async () => /ann: <b>launch<\/b>/.test(await text(page, 'override')));
    await until('the mode to be open', async () => /open/i.test(await text(page, 'mode')));
    await inspect(page, 'override', told);
    const spoken = await aloud(page);
    assert.equal(spoken[0], 'open');
    assert.match(spoken[1], /^· everybody is admitted until .*, by an override of ann$/);
    assert.equal(spoken.length, 2, `said once: ${spoken}`);

    // And back.
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('newcomers to be rejected again', async () => await check(0, `back-${came++}`) === 429);
    await until('the page to say so', async () => /None/.test(await text(page, 'override')));

    // With the keyboard alone: nobody in, by another X; then second thoughts.
    await page.locator('input[name=mode][value=auto]').focus();
    await page.keyboard.press('ArrowUp');
    assert.ok(await page.locator('input[name=mode][value=throttling]').isChecked());
    for (const _ of [1, 2, 3, 4, 5, 6]) await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'set', 'the button comes after the fields');
    await page.keyboard.press('Enter');
    await page.locator('#confirm').waitFor({ state: 'visible', timeout: DEADLINE });
    assert.equal(await page.evaluate(() => document.activeElement.value), 'no', 'the harmless answer has the focus');
    await clean(page, 'the question', told);
    await page.keyboard.press('Escape');
    await page.locator('#confirm').waitFor({ state: 'hidden', timeout: DEADLINE });
    assert.match(await text(page, 'override'), /None/);
    await page.locator('#set').focus();
    await page.keyboard.press('Enter');
    await page.locator('#confirm').waitFor({ state: 'visible', timeout: DEADLINE });
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await until('no newcomer to be admitted', async () => /No newcomer is admitted/.test(await text(page, 'override')));
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('that to be over', async () => /None/.test(await text(page, 'override')));

    // Newcomers are bounded for a while.
    await page.locator('input[name=mode][value=auto]').check();
    await page.locator('#per-minute').fill('600');
    await page.locator('#set').click();
    await confirm(page);
    await until('the bound', async () => /at most 600 newcomers a minute/.test(await text(page, 'override')));
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('that to be over', async () => /None/.test(await text(page, 'override')));
    await page.locator('#per-minute').fill('');

    // What the server refuses is said.
    await page.locator('#x').fill('99999999');
    await page.locator('#set').click();
    await confirm(page);
    await until('the refusal', async () => /capacity/.test(await text(page, 'steer-error')));
    await page.locator('#x').fill('');

    // Others in the namespace, and a store that does not answer: both are said once, and no longer than they last.
    await until('nothing more to say', async () => (await aloud(page)).length === 0);
    process.kill(plan.stranger.pid, 'SIGCONT');
    await until('the strangers', async () => /^Servers with another capacity, window or key/.test(await alarms(page)));
    assert.equal(await fact(page, 'Other generations').innerText(), 'yes');
    assert.equal(await fact(page, 'Other generations').getAttribute('class'), 'bad');
    process.kill(plan.redis.pid, 'SIGSTOP');
    await until('the store to be missed', async () => (await alarms(page)).some(it => /^The store has been away since \d\d:\d\d: \S/.test(it)));
    assert.match(await fact(page, 'Store').innerText(), /^redis at 127\.0\.0\.1:\d+, away/);
    assert.equal(await fact(page, 'Store').getAttribute('class'), 'bad');
    assert.match(await page.locator('#nodes tr').first().innerText(), /^game-1\s+unknown\s/);
    await inspect(page, 'alarms', told);
    told.alarms = await aloud(page);
    assert.equal(new Set(told.alarms).size, told.alarms.length, `said more than once: ${told.alarms}`);
    process.kill(plan.redis.pid, 'SIGCONT');
    await until('the store again', async () => !/The store/.test(await alarms(page)) && /read .* ago, 3 servers/.test(await fact(page, 'Store').innerText()));
    process.kill(plan.stranger.pid, 'SIGSTOP');
    await until('nothing to look at', async () => (await alarms(page)).length === 0);
    assert.equal(await fact(page, 'Other generations').innerText(), 'none');

    // No stream: the page asks, and tries again after a while.
    await page.route('**/api/v1/events', route => route.abort());
    await page.reload();
    await until('the page to ask', async () => /polled/.test(await text(page, 'connection')));
    await page.unroute('**/api/v1/events');

    // Shadow: nobody is rejected, and the page shows the rejections with ten other values of X.
    for (let nth = 0; nth < 300; nth++) assert.equal(await checkAt(plan.shadow.check, `player-${nth}`), 200);
    const shadow = await (await browser.newContext()).newPage();
    await shadow.goto(plan.shadow.admin);
    await until('what other Xs would do', async () => await shadow.locator('#what-if-rows tr').count() === 10);
    await until('everybody to be counted', async () => /of 300\)/.test(await text(shadow, 'what-if-rows')));
    assert.match(await text(shadow, 'mode'), /would be (rejected|admitted)/);
    // The number is an estimate; 3 of 300 are more than five times its standard deviation.
    await until('all who play to be shown', async () => Math.abs(await text(shadow, 'estimate') - 300) <= 3);
    assert.match(await text(shadow, 'of'), /a limit of 100 would have admitted 100 of them/);
    assert.match(await shadow.locator('#what-if-rows tr').nth(3).innerText(), /67 % \(200 of 300\)/);
    await inspect(shadow, 'what-if', told);
    await shadow.close();
    for (const scheme of ['light', 'dark']) await look(browser, plan.shadow.admin, 'shadow', scheme, SIZES[1], told);
    await until('the stream again', async () => await text(page, 'connection') === 'live');
    await context.close();

    // In a service of somebody's, which lets nobody change anything without a token.
    const mounted = await (await browser.newContext()).newPage();
    await mounted.goto(plan.mounted);
    await until('the page in a service', async () => await text(mounted, 'connection') === 'live');
    await mounted.locator('#picture svg').waitFor({ timeout: DEADLINE });
    await mounted.locator('#set').click();
    await confirm(mounted);
    await until('the refusal', async () => /token_file/.test(await text(mounted, 'steer-error')));
    await inspect(mounted, 'mounted', told);
    await mounted.close();

    // A token, first the wrong one.
    const guarded = await (await browser.newContext()).newPage();
    await guarded.goto(plan.guarded.admin);
    await guarded.locator('#token').waitFor({ state: 'visible', timeout: DEADLINE });
    await clean(guarded, 'the token', told);
    await guarded.locator('#token').fill('something else');
    await guarded.locator('#token').press('Enter');
    await until('the refusal of the token', async () => /not the token/.test(await text(guarded, 'login-error')));
    await inspect(guarded, 'token', told);
    await guarded.locator('#token').fill(plan.guarded.token);
    await guarded.locator('#token').press('Enter');
    await until('the figures', async () => /of 10/.test(await text(guarded, 'of')));
    await guarded.close();

    // A server that goes away is seen to be gone.
    const last = await (await browser.newContext()).newPage();
    await last.goto(plan.servers[2].admin);
    await until('the page to be live', async () => await text(last, 'connection') === 'live');
    closed = true;
    await playing;
    process.kill(plan.servers[2].pid, 'SIGKILL');
    await until('the page to say that nobody answers', async () => /no answer/.test(await text(last, 'connection')));
    await until('old figures to look old', () => last.evaluate(() => document.body.dataset.stale === 'true'));
    assert.match(await text(last, 'mode'), /as of \d\d:\d\d; the present state is unknown/);
    await inspect(last, 'gone', told);
  } finally {
    closed = true;
    await browser.close();
  }
  console.log(JSON.stringify(told));
})().catch(error => {
  console.error(error);
  process.exitCode = 1;
}).finally(() => connections.destroy());
