'use strict';
// People who have to wait, each with a browser in another language: they look at the page, and do nothing until they
// are admitted. One of them allows no scripts.

const assert = require('node:assert/strict');
const http = require('node:http');
const path = require('node:path');
const { clean, launch, still, until } = require('./browser.cjs');

const plan = JSON.parse(process.argv[2]);
const url = `${plan.check}/v1/check`;
const told = { axe: 0, waited: {} };
const connections = new http.Agent({ keepAlive: true, maxSockets: 8 });

function check(cookies) {
  return new Promise((resolve, reject) => {
    http.get(url, { agent: connections, headers: { cookie: cookies.join('; ') } }, answer => {
      answer.resume();
      answer.on('end', () => resolve(answer));
    }).on('error', reject);
  });
}

// Clients who wait for their turn, as a game client does.
async function client(name) {
  const cookies = [`sid=${name}`];
  for (;;) {
    const answer = await check(cookies);
    if (answer.statusCode === 200) return;
    assert.equal(answer.statusCode, 429);
    const ticket = answer.headers['set-cookie'].find(cookie => cookie.startsWith('ticket='));
    cookies[1] = ticket.split(';')[0];
    await new Promise(resolve => setTimeout(resolve, 1000 * Number(answer.headers['retry-after'])));
  }
}

// Looks at the page, until the browser is admitted.
async function person(browser, language, heading, options = {}) {
  const { name = language, direction = 'ltr', ...rest } = options;
  const context = await browser.newContext({ locale: language, ...rest });
  const { hostname } = new URL(url);
  await context.addCookies([{ name: 'sid', value: `person-${name}`, domain: hostname, path: '/' }]);
  const page = await context.newPage();
  const answers = [];
  page.on('response', answer => { if (answer.url() === url) answers.push(answer); });
  const begun = Date.now();
  const letGo = await still(page, url);
  const h1 = page.locator('h1');
  assert.equal(await h1.innerText(), heading);
  assert.equal(await page.title(), heading);
  assert.equal(answers[0].headers()['content-language'].split('-')[0], language.split('-')[0]);
  const [lang, dir] = await page.evaluate(() => [document.documentElement.lang, document.documentElement.dir]);
  assert.deepEqual([lang.split('-')[0], dir], [language.split('-')[0], direction]);
  const state = await page.locator('[role=status]').innerText();
  assert.match(state, /^\D*\d+\D*\n+\D*\d+(–\d+)?\D*$/, `${name}: a place and a wait`);
  assert.equal(await page.locator('progress').count(), 1);
  const scrolls = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.ok(!scrolls, `${name}: scrolls sideways`);
  await page.screenshot({ path: path.join(plan.shots, `waiting-${name}.png`) });
  const isScripted = rest.javaScriptEnabled !== false;
  if (isScripted) await clean(page, name, told);
  letGo();
  if (isScripted) {
    // The person may have come in by now, and then nothing is counted down.
    const seconds = async () => Number(await page.locator('#seconds').innerText({ timeout: 1000 }).catch(() => NaN));
    const [left, seen] = [await seconds(), answers.length];
    await until(`${name}: the countdown`, async () => (
      answers.length > seen || answers.at(-1).status() === 200 || await seconds() < left
    ));
  }
  await until(`${name}: to be in`, () => answers.at(-1).status() === 200, 120_000);
  assert.ok(answers.slice(0, -1).every(answer => answer.status() === 429));
  told.waited[name] = [answers.length, Math.round((Date.now() - begun) / 1000)];
  await context.close();
}

// Looks at the page before an opening, until the browser is admitted.
async function early(browser, language, heading, drawn, options = {}) {
  const { direction = 'ltr', ...rest } = options;
  const context = await browser.newContext({ locale: language, timezoneId: 'Asia/Tokyo', ...rest });
  const { check: url, opens } = plan.gathering;
  await context.addCookies([{ name: 'sid', value: `early-${language}`, domain: new URL(url).hostname, path: '/' }]);
  const page = await context.newPage();
  const answers = [];
  page.on('response', answer => { if (answer.url() === url) answers.push([answer.status(), Date.now()]); });
  const letGo = await still(page, url);
  assert.equal(await page.locator('h1').innerText(), heading);
  assert.equal(await page.locator('[role=status]').innerText(), drawn);
  assert.equal(await page.evaluate(() => document.documentElement.dir), direction);
  const time = await page.locator('time').innerText();
  const local = new Date(opens).toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short', timeZone: 'Asia/Tokyo' });
  const isScripted = rest.javaScriptEnabled !== false;
  assert.equal(time, isScripted ? local : opens.replace('T', ' ').replace('Z', ' UTC'), 'the time zone of the reader');
  const scrolls = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.ok(!scrolls, `${language}: scrolls sideways`);
  await page.screenshot({ path: path.join(plan.shots, `early-${language}.png`) });
  if (isScripted) await clean(page, `early ${language}`, told);
  letGo();
  await until(`${language}: to be in`, () => answers.at(-1)[0] === 200, 60_000);
  const late = (answers.at(-1)[1] - new Date(opens)) / 1000;
  assert.ok(late >= 0 && late < 13, `${language} is in ${late} s after the opening`);
  told.waited[`early ${language}`] = [answers.length, late];
  await context.close();
}

// An operator looks at the line.
async function operator(browser) {
  const page = await (await browser.newContext()).newPage();
  await page.goto(plan.admin);
  const fact = name => page.locator(`#facts dt:text-is("${name}") + dd`).innerText();
  await until('the line', async () => (
    await page.locator('#facts dt:text-is("Line")').count() === 1
    && /^\d+ wait at this server, \d+ of them called; the longest wait is [\d.]+ s, the median [\d.]+ s$/.test(await fact('Line'))
  ));
  await until('the pace', async () => /^\d+ served a minute/.test(await fact('Pace of the line')));
  assert.match(await fact('Called so far'), /^who came until \d/);
  await until('the chart of the line', async () => await page.locator('#picture polyline.waiting').count() > 0);
  assert.ok(await page.locator('#waiting').isVisible());
  await page.locator('#numbers summary').click();
  await until('the table', async () => /^[\d,]+$/.test(await page.locator('#rows tr:first-child td:last-child').innerText()));
  assert.equal(await page.locator('#waiting-head').innerText(), 'waiting');
  await clean(page, 'the line', told);
  await page.screenshot({ path: path.join(plan.shots, 'line.png'), fullPage: true });
}

(async () => {
  const browser = await launch();
  try {
    const admin = await (await browser.newContext()).newPage();
    await admin.goto(plan.gathering.admin);
    await until('the opening', async () => (
      await admin.locator('#facts dt:text-is("Openings")').count() === 1
      && /, by lot \(newcomers gather since \d/.test(await admin.locator('#facts dt:text-is("Openings") + dd').innerText())
    ));
    await Promise.all([
      early(browser, 'en-GB', 'Not open yet', 'The order is drawn by lot then. It does not matter when you came.'),
      early(browser, 'de', 'Noch nicht geöffnet', 'Die Reihenfolge wird dann ausgelost. Es spielt keine Rolle, wann Sie gekommen sind.', {
        viewport: { width: 320, height: 640 }, isMobile: true, colorScheme: 'dark',
      }),
      early(browser, 'es', 'Todavía no está abierto', 'El orden se sorteará entonces. No importa cuándo haya llegado.', { javaScriptEnabled: false }),
      early(browser, 'he', 'עדיין לא פתוח', 'הסדר ייקבע אז בהגרלה.', { direction: 'rtl' }),
    ]);
    let served = 0;
    const crowd = [];
    for (let name = 0; name < plan.crowd; name++) crowd.push(client(name).then(() => served++));
    // So many are needed to know how long the others will wait.
    await until('some of the crowd to be in', () => served > 40);
    await operator(browser);
    const phone = { viewport: { width: 320, height: 640 }, isMobile: true };
    await Promise.all([
      person(browser, 'en-GB', 'There is no room right now'),
      person(browser, 'de-AT', 'Im Moment ist kein Platz frei', { ...phone, colorScheme: 'dark' }),
      person(browser, 'es', 'Ahora mismo no queda sitio', { ...phone, javaScriptEnabled: false }),
      person(browser, 'zh-CN', '目前没有空位', phone),
      person(browser, 'ja', 'ただいま満員です', { colorScheme: 'dark' }),
      person(browser, 'he', 'אין מקום כרגע', { ...phone, direction: 'rtl' }),
    ]);
    await Promise.all(crowd);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(told));
})().catch(error => {
  console.error(error);
  process.exitCode = 1;
}).finally(() => connections.destroy());
