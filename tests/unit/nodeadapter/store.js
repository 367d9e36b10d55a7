'use strict';
// The real store of express-rate-limit by a clock of ours: {times (ms), window (ms), limit} on stdin, 0 or 1 for each on stdout.
const { MemoryStore } = require('express-rate-limit');

const { times, window, limit } = JSON.parse(require('node:fs').readFileSync(0));
let now = times[0];
Date.now = () => now;
class Given extends Date {
  constructor(...args) { super(...(args.length ? args : [now])); }
}
globalThis.Date = Given;

async function main() {
  const store = new MemoryStore();
  store.init({ windowMs: window });
  const out = [];
  for (now of times) out.push((await store.increment('k')).totalHits <= limit ? 1 : 0);
  console.log(out.join(''));
}
main();
