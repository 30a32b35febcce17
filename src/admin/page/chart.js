'use strict';
// The window as a picture: active users against the limit, who waits in the line, and what was admitted and rejected each second. The colours are the
// style sheet's, so that one picture is right on light and dark.

const SVG = new DOMParser().parseFromString('<svg></svg>', 'text/html').querySelector('svg').namespaceURI;
const CHART = { left: 52, right: 12, top: 20, between: 26, below: 24 };
// Steps of an axis of time, in seconds.
const STEPS = [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400];

function svg(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// 20000 → 20k.
function short(value) {
  const [scaled, unit] = value >= 1e6 ? [value / 1e6, 'M'] : value >= 1e3 ? [value / 1e3, 'k'] : [value, ''];
  return `${Number(scaled.toFixed(scaled >= 100 || Math.abs(scaled % 1) < 0.05 ? 0 : 1))}${unit}`;
}

// Returns round numbers from 0 to `most` in equal steps: 0, and at most `count` more.
function ticks(most, count) {
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(it => it >= rough);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, nth) => nth * step);
}

// Splits samples into lists, so that there is no gap between the samples of one list.
function stretches(samples, grain) {
  const whole = [];
  for (const sample of samples) {
    const last = whole.at(-1)?.at(-1);
    if (last && sample.start - last.start < 1.5 * grain) whole.at(-1).push(sample);
    else whole.push([sample]);
  }
  return whole;
}

// Draws the samples of `history` into `box`. `read(sample)` is called with the sample under the pointer, and with `null`
// when there is none.
function chart(box, history, { width, height, minutes, now, read }) {
  const grain = history.grain_seconds;
  const end = Date.parse(now) / 1000;
  const start = end - 60 * minutes;
  const samples = history.samples.map((sample, nth, all) => {
    const from = Date.parse(sample.from) / 1000;
    const next = nth + 1 < all.length ? Date.parse(all[nth + 1].from) / 1000 : end;
    const seconds = Math.max(sample.seconds, 1e-3);
    return {
      ...sample, start: from, end: Math.min(from + grain, next),
      admittedRate: sample.admitted / seconds, rejectedRate: sample.rejected / seconds,
      // A sample that has just begun is too short for a rate per second.
      isYoung: sample.seconds < Math.min(0.25 * grain, 2),
    };
  });
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
  const { left, right, top, between, below } = CHART;
  const x = at => left + (width - left - right) * Math.min(1, Math.max(0, (at - start) / (end - start)));
  const inner = height - top - between - below;
  const hasLine = samples.some(sample => sample.waiting !== null);
  const users = { top, bottom: top + inner * (hasLine ? 0.5 : 0.68) - (hasLine ? between : 0) };
  const line = { top: users.bottom + between, bottom: users.bottom + between + inner * 0.2 };
  const rates = { top: (hasLine ? line : users).bottom + between, bottom: height - below };

  // A very wide interval is cut off, because it would make everything else small.
  const highest = (list, value) => list.reduce((most, sample) => Math.max(most, value(sample)), 0);
  const most = Math.max(1, highest(samples, it => Math.max(it.active_users, it.max_active_users)));
  const topUsers = 1.1 * Math.max(most, Math.min(highest(samples, it => it.high), 1.3 * most));
  const topRate = 1.1 * Math.max(1, highest(samples.filter(it => !it.isYoung), it => Math.max(it.admittedRate, it.rejectedRate)));
  const scale = ({ top: above, bottom }, max) => value => bottom - (bottom - above) * Math.min(1, value / max);
  const yUsers = scale(users, topUsers);
  const yRate = scale(rates, topRate);
  const topWaiting = 1.1 * Math.max(1, highest(samples, it => it.waiting ?? 0));
  const yWaiting = scale(line, topWaiting);

  const panels = [[users, topUsers, 5, yUsers, 'active users'], [rates, topRate, 3, yRate, 'a second, on this server']];
  if (hasLine) panels.push([line, topWaiting, 2, yWaiting, 'waiting in the line']);
  for (const [panel, max, count, y, title] of panels) {
    for (const value of ticks(max / 1.1, count)) {
      root.append(svg('line', { class: 'rule', x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      root.append(svg('text', { class: 'axis', x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, short(value)));
    }
    root.append(svg('text', { class: 'axis', x: width - right, y: panel.top - 6, 'text-anchor': 'end' }, title));
  }
  const step = STEPS.find(it => (end - start) / it <= Math.max(1, Math.floor((width - left) / 80))) ?? 86400;
  const offset = -60 * new Date().getTimezoneOffset();
  for (let at = Math.ceil((start + offset) / step) * step - offset; at <= end; at += step) {
    const clock = new Date(1000 * at).toLocaleTimeString([], {
      hour: '2-digit', minute: '2-digit', second: step < 60 ? '2-digit' : undefined, hourCycle: 'h23',
    });
    root.append(svg('line', { class: 'rule', x1: x(at), x2: x(at), y1: rates.bottom, y2: rates.bottom + 4 }));
    root.append(svg('text', { class: 'axis', x: x(at), y: height - 6, 'text-anchor': 'middle' }, clock));
  }

  // One band for each time in which newcomers were rejected, however many samples it has.
  for (const band of stretches(samples.filter(sample => sample.throttling > 0), grain)) {
    const [from, to] = [x(band[0].start), x(band.at(-1).end)];
    root.append(svg('rect', { class: 'band', x: from, y: users.top, width: Math.max(1, to - from), height: users.bottom - users.top }));
  }
  const path = points => points.map(([at, y]) => `${x(at).toFixed(1)},${y.toFixed(1)}`).join(' ');
  for (const whole of stretches(samples, grain)) {
    const ends = value => [[whole[0].start, value(whole[0])], ...whole.map(it => [it.end, value(it)])];
    const ofUsers = value => ends(it => yUsers(value(it)));
    root.append(svg('polygon', { class: 'interval', points: path([...ofUsers(it => it.high), ...ofUsers(it => it.low).toReversed()]) }));
    root.append(svg('polyline', { class: 'limit', points: path(ofUsers(it => it.max_active_users)) }));
    // A halo keeps the users visible where they meet the limit.
    for (const name of ['halo', 'users']) root.append(svg('polyline', { class: name, points: path(ofUsers(it => it.active_users)) }));
    if (hasLine) root.append(svg('polyline', { class: 'waiting', points: path(ends(it => yWaiting(it.waiting ?? 0))) }));
    const old = whole.filter(it => !it.isYoung);
    for (const [name, rate] of [['admitted', 'admittedRate'], ['rejected', 'rejectedRate']]) {
      root.append(svg('polyline', { class: name, points: path(old.flatMap(it => [[it.start, yRate(it[rate])], [it.end, yRate(it[rate])]])) }));
    }
  }

  const hair = svg('line', { class: 'hair', y1: users.top, y2: rates.bottom, visibility: 'hidden' });
  root.append(hair);
  root.onpointermove = event => {
    const bounds = root.getBoundingClientRect();
    const at = start + (end - start) * ((event.clientX - bounds.left) / bounds.width * width - left) / (width - left - right);
    const found = samples.find(sample => sample.start <= at && at < sample.end) ?? null;
    hair.setAttribute('visibility', found ? 'visible' : 'hidden');
    hair.setAttribute('x1', x(at));
    hair.setAttribute('x2', x(at));
    read(found);
  };
  root.onpointerleave = () => {
    hair.setAttribute('visibility', 'hidden');
    read(null);
  };
  box.replaceChildren(root);
}
