'use strict';
/* Reports to tickscope what a rate limiter decides. Copy this file into your program (as tickscope.cjs beside ES modules), then
 *
 *     const tickscope = require('./tickscope.js');
 *     app.use(tickscope.watch(rateLimit({ windowMs: 60_000, limit: 100 }), 'api', { window_ms: 60_000 }));
 *     tickscope.watch(new RateLimiterMemory({ points: 5, duration: 1 }), 'login');
 *
 * express-rate-limit 6 to 8, the limiters of rate-limiter-flexible; any other: tickscope.report('mail', 'refused', { key: customer }).
 * Node 18 or newer, nothing else. No caller waits for tickscope or gets an exception of it; where there is no agent, decisions are counted.
 */
const net = require('node:net');

const PAUSE_MS = 100; // between two attempts to find an agent
const BEHIND = 65536; // bytes that wait for an agent that does not read

const tickscope = { path: '/run/tickscope/intake.stream.sock', dropped: 0, report, watch };
module.exports = tickscope;

let socket = null;
let notBefore = 0;

/** result: allowed, refused, delayed, error or cancelled. more: members as in tickscope's docs/limiters-reference.md; what is undefined is left out. */
function report(limiter, result, more = {}) {
  try {
    const { dropped } = tickscope;
    const fields = { ...more, limiter, result, dropped };
    if (fields.key !== undefined) fields.key = String(fields.key).slice(0, 500);
    const line = `${JSON.stringify(fields)}\n`;
    tickscope.dropped = 0;
    send(line, dropped + 1);
  } catch {
    tickscope.dropped++; // of no concern to who asked the limiter
  }
}

/** count: decisions that are dropped where it cannot be sent. */
function send(line, count, again = true) {
  const to = connected();
  if (!to || to.writableLength > BEHIND) {
    tickscope.dropped += count;
    return;
  }
  to.write(line, (error) => {
    if (!error) return;
    if (socket === to) socket = null; // an agent that was started again is found at once
    if (again) send(line, count, false);
    else tickscope.dropped += count;
  });
}

function connected() {
  if (socket || performance.now() < notBefore) return socket;
  notBefore = performance.now() + PAUSE_MS;
  const opened = net.connect(tickscope.path);
  socket = opened;
  opened.unref(); // a program may end meanwhile
  opened.on('connect', () => { notBefore = 0; }); // who has ended is missed at once
  opened.on('error', () => {});
  opened.on('close', () => { if (socket === opened) socket = null; });
  return opened;
}

/** Has this limiter report its decisions; returns it (express-rate-limit's middleware: another in its place). more: further members of each decision, window_ms too. */
function watch(limiter, name, { window_ms, ...more } = {}) {
  if (window_ms) more.window_ns = window_ms * 1e6;
  return typeof limiter === 'function' ? express(limiter, name, more) : flexible(limiter, name, more);
}

/** A middleware that calls next of whom it admits, and leaves what it counted in the request. */
function express(middleware, name, more) {
  const library = 'express-rate-limit';
  async function watched(request, response, next) {
    const began = process.hrtime.bigint();
    const program_wall_ns = Date.now() * 1e6;
    const { rateLimit: others } = request; // of a limiter before it
    let reported = false;
    const say = (result) => {
      const seen = request.rateLimit === others ? undefined : request.rateLimit;
      const over = reported || !(seen || result === 'error'); // it was skipped
      reported = true; // who comes behind it may leave something there, too
      if (over) return;
      const duration_ns = Number(process.hrtime.bigint() - began);
      report(name, result, { library, duration_ns, program_wall_ns, key: seen?.key, cost: 1, burst: seen?.limit, remaining: seen?.remaining, ...more });
    };
    await middleware(request, response, (error) => {
      say(error ? 'error' : 'allowed');
      next(error);
    });
    say('refused');
  }
  return Object.assign(watched, middleware);
}

function flexible(limiter, name, more) {
  const { consume } = limiter;
  if (Object.hasOwn(limiter, 'consume')) return limiter; // watched already
  limiter.consume = async function watched(key, points = 1, ...rest) {
    const began = process.hrtime.bigint();
    const program_wall_ns = limiter.constructor.name === 'RateLimiterMemory' ? Date.now() * 1e6 : undefined;
    const say = (result, answer) => {
      const duration_ns = Number(process.hrtime.bigint() - began);
      const { points: burst, duration } = limiter;
      const window_ns = duration ? duration * 1e9 : undefined;
      const library = 'rate-limiter-flexible';
      report(name, result, { library, duration_ns, program_wall_ns, key, cost: points, burst, window_ns, remaining: answer?.remainingPoints, ...more });
    };
    try {
      const answer = await consume.call(limiter, key, points, ...rest);
      say('allowed', answer);
      return answer;
    } catch (answer) {
      say(answer instanceof Error ? 'error' : 'refused', answer);
      throw answer;
    }
  };
  return limiter;
}
