// shake.js PORT COUNT FILE: so many handshakes with Node's built-in OpenSSL, and syncs of a file; then waits for the end of stdin.
const fs = require('fs'), tls = require('tls');
const [port, count, file] = process.argv.slice(2);
let left = Number(count);
function next() {
  if (left-- === 0) {
    console.log('done');
    process.stdin.resume();
    return;
  }
  const fd = fs.openSync(file, 'w');
  fs.writeSync(fd, Buffer.alloc(1 << 16));
  fs.fsyncSync(fd);
  fs.closeSync(fd);
  const socket = tls.connect({ port: Number(port), host: '127.0.0.1', rejectUnauthorized: false }, () => socket.end());
  socket.on('close', next);
}
next();
