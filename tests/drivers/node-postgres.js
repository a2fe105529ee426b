// postgres.js, which is a pool itself.

const { pipeline } = require("node:stream/promises");
const postgres = require("postgres");
const { assert, common, main, refused, scenarios, slow, takeover, without, write } = require("./suite.js");

const open = (token, more = {}) =>
  postgres({ max: 1, connection: token ? { "fencing.token": token } : {}, onnotice: () => {}, ...more });

const run = (sql, text) => sql.unsafe(text);
const connected = common(open, run, (sql) => sql.end({ timeout: 1 }));

scenarios.batch = connected(async (connect) => {
  const sql = await connect(takeover());
  await run(sql, write("kept"));
  takeover("asleep");
  return refused(() =>
    sql.begin((sql) => [run(sql, write("lost")), run(sql, slow()), run(sql, write("lost"))]),
  );
});

scenarios.copy = connected(async (connect) => {
  const sql = await connect(takeover());
  const copy = async (rows) => pipeline(rows, await sql`COPY jobs FROM STDIN`.writable());
  await copy(["copy\tkept\n"]);
  async function* rows() {
    yield "copy\tlost\n";
    takeover();
    yield "copy\tlost\n";
  }
  return refused(() => copy(rows));
});

// In one pool, the first transactions with the new token fail at most once for each of its connections.
scenarios.pool = async () => {
  const sql = open(undefined, { max: 2 });
  const transaction = (token, what) =>
    sql.begin(async (sql) => {
      await run(sql, `SET LOCAL fencing.token = ${token}`);
      await run(sql, write(what));
    });
  const old = takeover();
  await Promise.all([transaction(old, "kept"), transaction(old, "kept")]);
  const token = takeover();
  await refused(() => transaction(old, "lost"));
  let tries = 0;
  while (await transaction(token, "kept").then(() => 0, (error) => error)) assert(++tries < 3);
  await sql.end({ timeout: 1 });
  return tries ? `after ${tries}` : "ok";
};

scenarios.prepared = connected(async (connect) => {
  const sql = await connect();
  const insert = async (token, what) => {
    await sql.begin(async (sql) => {
      await run(sql, `SET LOCAL fencing.token = ${token}`);
      await sql`INSERT INTO jobs VALUES ('prepared', ${what})`;
    });
  };
  const old = takeover();
  await insert(old, "kept");
  await insert(old, "kept");
  const token = takeover();
  await refused(() => insert(old, "lost"));
  await insert(token, "kept").catch(() => {}); // on a connection that has ended
  await insert(token, "kept");
  await insert(token, "kept");
});

scenarios.cancel = connected(async (connect) => {
  const sql = await connect(takeover());
  const query = run(sql, slow());
  setTimeout(() => query.cancel(), 1000);
  assert.equal((await query.catch((e) => e)).code, "57014");
  await run(sql, write("kept"));
});

scenarios.notify = connected(async (connect) => {
  const sql = await connect(takeover());
  const heard = new Promise((resolve) => sql.listen("jobs", resolve, () => sql.notify("jobs", "done")));
  assert.equal(await heard, "done");
  await run(sql, write("kept"));
});

scenarios.objects = connected(async (connect) => {
  const sql = await connect(takeover());
  const object = await sql.largeObject();
  await object.write(Buffer.from("an object"));
  await object.seek(0);
  assert.equal((await object.read(100))[0].data.toString(), "an object");
  await object.close();
  await run(sql, write("kept"));
});

scenarios.cursor = connected(async (connect) => {
  const sql = await connect(takeover());
  let last = 0;
  for await (const rows of sql`SELECT generate_series(1, 1000) AS n`.cursor(10)) last = rows.at(-1).n;
  assert.equal(last, 1000);
  await run(sql, write("kept"));
});

scenarios.attrs = connected(async () => {
  const sql = open(undefined, { target_session_attrs: "read-write" });
  await run(sql, `SET fencing.token = ${takeover()}`);
  await run(sql, write("kept"));
  await sql.end({ timeout: 1 });
});

without("postgres.js has none", "autocommit", "binary");

main(`postgres.js ${require(`${process.env.NODE_PATH}/postgres/package.json`).version}`);
