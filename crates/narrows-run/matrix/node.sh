# needs: node
# scenarios: small big post refused many
case $role in
server)
    cat >server.js <<'JS'
const http = require('http'), fs = require('fs'), crypto = require('crypto');
http.createServer((q, a) => {
  if (q.method === 'POST') {
    const hash = crypto.createHash('sha256');
    q.on('data', d => hash.update(d)).on('end', () => a.end(hash.digest('hex')));
  } else {
    fs.createReadStream(process.env.DATA + q.url).pipe(a);
  }
}).listen(+process.env.PORT, process.env.ADDR);
JS
    $RUN node server.js &
    up "$PORT"
    ;;
client)
    cat >client.js <<'JS'
const http = require('http'), fs = require('fs'), crypto = require('crypto');
const [host, scenario] = [process.env.ADDR, process.argv[2]];
const port = +(scenario === 'refused' ? process.env.PORT2 : process.env.PORT);
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
const ask = (path, body) => new Promise(done => {
  const hash = crypto.createHash('sha256');
  const q = http.request({ host, port, path, agent, method: body ? 'POST' : 'GET' }, a => {
    let text = '';
    a.on('data', d => { hash.update(d); if (body) text += d; });
    a.on('end', () => done(body ? text : hash.digest('hex')));
    a.on('error', e => done(e.code));
  });
  q.on('error', e => done(e.code));
  if (body) fs.createReadStream(body).pipe(q); else q.end();
});
const of = name => crypto.createHash('sha256').update(fs.readFileSync(process.env.DATA + name)).digest('hex');
const list = scenario === 'many' ? Array.from({ length: 64 }, (_, i) => '/many/' + (i + 1)) : ['/' + scenario];
(async () => {
  let bad = 0;
  if (scenario === 'refused') {
    console.log(await ask('/'));
  } else if (scenario === 'post') {
    const got = await Promise.all([1, 2, 3, 4].map(() => ask('/', process.env.DATA + '/big')));
    bad = got.filter(g => g !== of('/big')).length;
  } else {
    const got = await Promise.all(list.map(n => ask(n)));
    bad = got.filter((g, i) => g !== of(list[i])).length;
  }
  console.log(bad, 'wrong');
  agent.destroy();
  process.exitCode = bad;
})();
JS
    exits 0 $RUN node client.js $scenario
    ;;
esac
