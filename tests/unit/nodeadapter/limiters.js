'use strict';
// Lines LIMITER COUNT on stdin: asks so often, and says how often it was allowed and how many decisions are still to be reported. node limiters.js ADAPTER SOCKET
const readline = require('node:readline');

const tickscope = require(process.argv[2]);
tickscope.path = process.argv[3];

let left = 5;
function own() {
  const allowed = left-- > 0;
  tickscope.report('own', allowed ? 'allowed' : 'refused', { key: 17, burst: 5, nothing: undefined });
  return allowed;
}

/** A server with this limiter before its one page, asked by fetch. */
async function page(name, library) {
  const app = require('express')();
  const rateLimit = require(library).rateLimit;
  const limit = rateLimit({
    windowMs: 60_000, limit: 5, max: 5, standardHeaders: 'draft-6',
    keyGenerator: () => 'customer 17', skip: (request) => request.path === '/health',
  });
  app.use(tickscope.watch(limit, name, { window_ms: 60_000 }));
  app.get('/{*all}', (request, response) => response.end());
  const server = app.listen(0, '127.0.0.1');
  await new Promise((listening) => server.once('listening', listening));
  server.unref();
  const at = `http://127.0.0.1:${server.address().port}`;
  return async () => {
    await fetch(`${at}/health`);
    return (await fetch(at)).status === 200;
  };
}

function flexible() {
  const { RateLimiterMemory } = require('rate-limiter-flexible');
  const limiter = tickscope.watch(tickscope.watch(new RateLimiterMemory({ points: 10, duration: 60 }), 'login'), 'login');
  return () => limiter.consume('customer 17', 2).then(() => true, () => false);
}

const asked = { own };
async function asks(name) {
  if (!asked[name]) asked[name] = name === 'login' ? flexible() : await page(name, name === 'old' ? 'express-rate-limit-6' : 'express-rate-limit');
  return asked[name];
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, count] = line.split(' ');
    const ask = await asks(name);
    let allowed = 0;
    for (let i = 0; i < Number(count); i++) if (await ask()) allowed++;
    await new Promise((done) => setTimeout(done, 20)); // what could not be sent is reported by the event loop
    console.log(allowed, tickscope.dropped);
  }
}
main();
