'use strict';
// A person at the admin page: looks, in both themes and three sizes; steers; asks with the keyboard alone.
// It waits for what it expects to see, each time with a deadline, and says what it measured.

const assert = require('node:assert/strict');
const http = require('node:http');
const path = require('node:path');
const { execFileSync } = require('node:child_process');
const { chromium } = require('playwright-core');
const { default: AxeBuilder } = require('@axe-core/playwright');

const plan = JSON.parse(process.argv[2]);
const DEADLINE = 20_000;
const SIZES = [[375, 812], [1280, 800], [2560, 1440]];
const connections = new http.Agent({ keepAlive: true, maxSockets: 8 });

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

async function until(what, condition) {
  const begun = Date.now();
  for (;;) {
    const met = await condition();
    if (met) return met;
    assert.ok(Date.now() - begun < DEADLINE, `waited ${DEADLINE} ms for ${what}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

const text = (page, id) => page.locator(`#${id}`).innerText();

async function look(browser, url, name, colorScheme, [width, height], told) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height }, reducedMotion: 'reduce' });
  const page = await context.newPage();
  const complaints = [];
  page.on('console', message => { if (message.type() === 'error') complaints.push(message.text()); });
  page.on('pageerror', error => complaints.push(String(error)));
  await page.goto(url);
  await page.locator('#picture svg').waitFor({ timeout: DEADLINE });
  await page.waitForFunction(() => document.getElementById('connection').textContent === 'live', null, { timeout: DEADLINE });
  const scrolls = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(scrolls, 0, `${name}: scrolls sideways by ${scrolls} px`);
  if (width === 375) {
    for (const id of ['mode', 'count', 'trend']) {
      const box = await page.locator(`#${id}`).boundingBox();
      assert.ok(box.y + box.height <= 400, `${name}: #${id} ends at ${box.y + box.height} px`);
    }
  }
  await clean(page, name, told);
  assert.deepEqual(complaints, [], `${name}: the browser complains`);
  await page.screenshot({ path: path.join(plan.shots, `${name}-${colorScheme}-${width}.png`), fullPage: width === 375 });
  await context.close();
}

// As a screen reader would find it.
async function clean(page, name, told) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  const found = violations.map(it => `${it.id}: ${it.nodes.map(node => node.target.join(' ')).join(', ')}`);
  assert.deepEqual(found, [], `${name}: axe`);
  told.axe += 1;
}

async function confirm(page) {
  await page.locator('#confirm').waitFor({ state: 'visible', timeout: DEADLINE });
  await page.locator('#confirm-yes').click();
}

(async () => {
  const program = ['chromium', 'chromium-browser', 'google-chrome'].map(name => {
    try { return execFileSync('which', [name], { encoding: 'utf8' }).trim(); } catch { return null; }
  }).find(Boolean);
  assert.ok(program, 'Chromium is needed: ./test installs it');
  const browser = await chromium.launch({ executablePath: program, args: ['--no-sandbox'] });
  const told = { axe: 0 };
  try {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    const page = await context.newPage();
    await page.goto(plan.servers[0].admin);
    await until('the page to be live', async () => await text(page, 'connection') === 'live');
    assert.match(await text(page, 'mode'), /OPEN/i);

    // The house fills, and the page says so.
    let came = 0;
    await until('the house to be full', async () => {
      const some = Array.from({ length: 60 }, () => came++);
      await Promise.all(some.map(nth => check(nth % 3, `player-${nth}`)));
      return /throttling/i.test(await text(page, 'mode'));
    });
    await until('a newcomer to be turned away everywhere', async () =>
      (await Promise.all([0, 1, 2].map(server => check(server, `newcomer-${came++}`)))).every(status => status === 429));
    await until('the title to say so', async () => /throttling/.test(await page.title()));
    for (const scheme of ['light', 'dark']) for (const size of SIZES) await look(browser, plan.servers[0].admin, 'throttling', scheme, size, told);

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
    await page.screenshot({ path: path.join(plan.shots, 'override-light-1280.png'), fullPage: true });

    // And back.
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('newcomers to be turned away again', async () => await check(0, `back-${came++}`) === 429);
    await until('the page to say so', async () => /None/.test(await text(page, 'override')));

    // With the keyboard alone: nobody in, by another X; then second thoughts.
    await page.locator('input[name=mode][value=auto]').focus();
    await page.keyboard.press('ArrowUp');
    assert.ok(await page.locator('input[name=mode][value=throttling]').isChecked());
    for (const _ of [1, 2, 3, 4, 5]) await page.keyboard.press('Tab');
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
    await until('nobody to get in', async () => /No newcomer gets in/.test(await text(page, 'override')));
    await page.locator('#withdraw').click();
    await confirm(page);
    await until('that to be over', async () => /None/.test(await text(page, 'override')));

    // What the server refuses is said.
    await page.locator('#x').fill('99999999');
    await page.locator('#set').click();
    await confirm(page);
    await until('the refusal', async () => /capacity/.test(await text(page, 'steer-error')));
    await page.locator('#x').fill('');

    // No stream: the page asks.
    await page.route('**/api/v1/events', route => route.abort());
    await page.reload();
    await until('the page to ask', async () => /asked/.test(await text(page, 'connection')));
    await page.unroute('**/api/v1/events');
    await until('the stream again', async () => await text(page, 'connection') === 'live');
    await context.close();

    // Shadow: nobody is turned away, and the page says who would be, by six Xs.
    for (let nth = 0; nth < 300; nth++) assert.equal(await checkAt(plan.shadow.check, `player-${nth}`), 200);
    const shadow = await browser.newPage();
    await shadow.goto(plan.shadow.admin);
    await until('what other Xs would do', async () => await shadow.locator('#what-if-rows tr').count() === 6);
    await until('everybody to be counted', async () => /of 300\)/.test(await text(shadow, 'what-if-rows')));
    assert.match(await text(shadow, 'mode'), /would be turned away/);
    assert.match(await shadow.locator('#what-if-rows tr').nth(3).innerText(), /67 % \(200 of 300\)/);
    await shadow.close();
    for (const scheme of ['light', 'dark']) await look(browser, plan.shadow.admin, 'shadow', scheme, SIZES[1], told);

    // In a service of somebody's, which lets nobody change anything without a token.
    const mounted = await browser.newPage();
    await mounted.goto(plan.mounted);
    await until('the page in a service', async () => await text(mounted, 'connection') === 'live');
    await mounted.locator('#picture svg').waitFor({ timeout: DEADLINE });
    await mounted.locator('#set').click();
    await confirm(mounted);
    await until('the refusal', async () => /token_file/.test(await text(mounted, 'steer-error')));
    await mounted.close();

    // A token, first the wrong one.
    const guarded = await (await browser.newContext()).newPage();
    await guarded.goto(plan.guarded.admin);
    await guarded.locator('#token').waitFor({ state: 'visible', timeout: DEADLINE });
    await clean(guarded, 'the token', told);
    await guarded.locator('#token').fill('something else');
    await guarded.locator('#token').press('Enter');
    await until('the refusal of the token', async () => /not the token/.test(await text(guarded, 'login-error')));
    await guarded.screenshot({ path: path.join(plan.shots, 'token.png') });
    await guarded.locator('#token').fill(plan.guarded.token);
    await guarded.locator('#token').press('Enter');
    await until('the figures', async () => /of 10/.test(await text(guarded, 'of')));
    await guarded.close();

    // A server that goes away is seen to be gone.
    const last = await browser.newPage();
    await last.goto(plan.servers[2].admin);
    await until('the page to be live', async () => await text(last, 'connection') === 'live');
    process.kill(plan.servers[2].pid, 'SIGKILL');
    await until('the page to say that nobody answers', async () => /no answer/.test(await text(last, 'connection')));
    await until('old figures to look old', () => last.evaluate(() => document.body.dataset.stale === 'true'));
    await last.screenshot({ path: path.join(plan.shots, 'gone.png') });
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(told));
})().catch(error => {
  console.error(error);
  process.exitCode = 1;
}).finally(() => connections.destroy());
