// node-postgres with its pool, pg-cursor and pg-copy-streams.

const { pipeline } = require("node:stream/promises");
const { Readable } = require("node:stream");
const { once } = require("node:events");
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");
const { from } = require("pg-copy-streams");
const { assert, common, main, refused, scenarios, slow, takeover, without, write } = require("./suite.js");

const ended = new WeakMap(); // the error that ended a connection while nobody waited for it

async function open(token, more = {}) {
  const client = new Client({ options: token && `-c fencing.token=${token}`, ...more });
  client.on("error", (error) => ended.has(client) || ended.set(client, error));
  await client.connect();
  return client;
}

async function run(client, ...query) {
  await new Promise((resolve) => setTimeout(resolve, 20)); // for what has come meanwhile
  if (ended.has(client)) throw ended.get(client);
  return client.query(...query);
}

const connected = common(open, run, (client) => client.end());

scenarios.batch = connected(async (connect) => {
  const c = await connect(takeover());
  await run(c, write("kept"));
  takeover("asleep");
  return refused(() => run(c, [write("lost"), slow(), write("lost")].join("; ")));
});

scenarios.copy = connected(async (connect) => {
  const c = await connect(takeover());
  await pipeline(Readable.from(["copy\tkept\n"]), c.query(from("COPY jobs FROM STDIN")));
  async function* rows() {
    yield "copy\tlost\n";
    takeover();
    yield "copy\tlost\n";
  }
  return refused(() => pipeline(rows, c.query(from("COPY jobs FROM STDIN"))));
});

// In one pool, the first transactions with the new token fail at most once for each of its connections.
scenarios.pool = async () => {
  const pool = new Pool({ max: 2 });
  pool.on("error", () => {});
  const transaction = async (token, what) => {
    const client = await pool.connect();
    client.on("error", () => {});
    try {
      await client.query("BEGIN");
      await client.query(`SET LOCAL fencing.token = ${token}`);
      await client.query(write(what));
      await client.query("COMMIT");
      client.release();
    } catch (error) {
      client.release(error);
      throw error;
    }
  };
  const old = takeover();
  await Promise.all([transaction(old, "kept"), transaction(old, "kept")]);
  const token = takeover();
  await refused(() => transaction(old, "lost"));
  let tries = 0;
  while (await transaction(token, "kept").catch((error) => error)) assert(++tries < 2);
  await pool.end();
  return ["ok", "after 1"][tries];
};

scenarios.prepared = connected(async (connect) => {
  let c = await connect(takeover());
  const insert = (what) => run(c, { name: "insert", text: "INSERT INTO jobs VALUES ('prepared', $1)", values: [what] });
  await insert("kept");
  const token = takeover();
  await refused(() => insert("lost"));
  if (ended.has(c)) c = await connect(token);
  else await run(c, `SET fencing.token = ${token}`);
  await insert("kept");
  await insert("kept");
});

scenarios.cancel = connected(async (connect) => {
  const c = await connect(takeover());
  const error = c.query(slow()).catch((e) => e);
  setTimeout(() => new Client().cancel(c, c._activeQuery), 1000);
  assert.equal((await error).code, "57014");
  await run(c, write("kept"));
});

scenarios.notify = connected(async (connect) => {
  const c = await connect(takeover());
  await run(c, "LISTEN jobs");
  const heard = once(c, "notification");
  await run(c, "NOTIFY jobs, 'done'");
  assert.equal((await heard)[0].payload, "done");
  await run(c, write("kept"));
});

scenarios.cursor = connected(async (connect) => {
  const c = await connect(takeover());
  const cursor = c.query(new Cursor("SELECT generate_series(1, 1000) AS n"));
  assert.equal((await cursor.read(10)).at(-1).n, 10);
  assert.equal((await cursor.read(990)).at(-1).n, 1000);
  await cursor.close();
  await run(c, write("kept"));
});

scenarios.binary = connected(async (connect) => {
  const c = await connect(takeover());
  const text = "SELECT $1::int AS number, $2::bool AS flag, $3::text AS text";
  const row = { number: 7, flag: true, text: "seven" };
  assert.deepEqual((await run(c, { text, values: Object.values(row), binary: true })).rows, [row]);
  await run(c, write("kept"));
});

without("has none, SQL functions only", "objects");
without("has none", "autocommit", "attrs");

main(`node-postgres ${require("pg/package.json").version}`);
