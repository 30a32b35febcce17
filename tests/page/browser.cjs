'use strict';
// What every tour needs: a browser, patience with a deadline, and the ear of a screen reader.

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const { chromium } = require('playwright-core');
const { default: AxeBuilder } = require('@axe-core/playwright');

const DEADLINE = 20_000;

async function launch() {
  const program = ['chromium', 'chromium-browser', 'google-chrome'].map(name => {
    try { return execFileSync('which', [name], { encoding: 'utf8' }).trim(); } catch { return null; }
  }).find(Boolean);
  assert.ok(program, 'Chromium is needed: ./test installs it');
  return chromium.launch({ executablePath: program, args: ['--no-sandbox'] });
}

async function until(what, condition, deadline = DEADLINE) {
  const begun = Date.now();
  for (;;) {
    const met = await condition();
    if (met) return met;
    assert.ok(Date.now() - begun < deadline, `waited ${deadline} ms for ${what}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

// As a screen reader would find it.
async function clean(page, name, told) {
  // There are no frames, so it needs no page of its own to put them together.
  const { violations } = await new AxeBuilder({ page }).setLegacyMode().analyze();
  const found = violations.map(it => `${it.id}: ${it.nodes.map(node => node.target.join(' ')).join(', ')}`);
  assert.deepEqual(found, [], `${name}: axe`);
  told.axe += 1;
}

// Loads a page, which loads itself again only after the returned function was called: axe would go with the page that
// it looks at.
async function still(page, url) {
  let letGo, loads = 0;
  const gone = new Promise(resolve => { letGo = resolve; });
  await page.route(url, async route => {
    if (loads++ > 0) await gone;
    await route.continue();
  });
  await page.goto(url);
  return letGo;
}

module.exports = { DEADLINE, clean, launch, still, until };
