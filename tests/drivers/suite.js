// What the suites in Node share: the scenarios that are SQL only, and how a suite reports.

const { execFileSync } = require("node:child_process");
const assert = require("node:assert");

let now = ""; // the scenario that runs
const scenarios = {};

// Deposes everybody, and returns the token of the new leader.
const takeover = (...when) => execFileSync(process.env.TAKEOVER, when, { encoding: "utf8" }).trim();
const write = (what) => `INSERT INTO jobs VALUES ('${now}', '${what}')`;
const slow = () => `INSERT INTO jobs SELECT '${now}', 'lost' FROM pg_sleep(10)`;

const without = (reason, ...names) => names.forEach((name) => (scenarios[name] = () => `n/a ${reason}`));

// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
async function refused(doing) {
  let error;
  try {
    await doing();
  } catch (e) {
    error = e;
  }
  assert(error, "nothing was refused");
  for (const code of ["PF001", "PF002", "08007"]) {
    if (error.code === code) return code;
    if (error.message.includes(`${code}: `)) return `(${code})`;
  }
  if (/clos|lost|terminat|ended/i.test(error.message)) return "lost";
  throw error;
}

// With `open(token)`, `run(connection, sql)` and `close(connection)`.
function common(open, run, close) {
  const connected = (scenario) => async () => {
    const all = [];
    try {
      return await scenario(async (token) => all[all.push(await open(token)) - 1]);
    } finally {
      await Promise.allSettled(all.map(close));
    }
  };
  Object.assign(scenarios, {
    // In transaction mode nothing that the driver sets for itself keeps the server connection.
    shares: connected(async (connect) => {
      const c = await connect(takeover());
      await run(c, write("kept"));
      return takeover("keeps") === "0" ? "ok" : "keeps";
    }),
    string: connected(async (connect) => {
      await run(await connect(takeover()), write("kept"));
    }),
    set: connected(async (connect) => {
      const c = await connect();
      await run(c, `SET fencing.token = ${takeover()}`);
      await run(c, write("kept"));
    }),
    local: connected(async (connect) => {
      const c = await connect();
      await run(c, "BEGIN");
      await run(c, `SET LOCAL fencing.token = ${takeover()}`);
      await run(c, write("kept"));
      await run(c, "COMMIT");
      assert.equal(await refused(() => run(c, write("lost"))), "PF002");
    }),
    "old-string": connected(async (connect) => {
      const old = takeover();
      await run(await connect(takeover()), write("kept"));
      return refused(async () => run(await connect(old), write("lost")));
    }),
    "old-set": connected(async (connect) => {
      const [old, token, c] = [takeover(), takeover(), await connect()];
      const cell = await refused(() => run(c, `SET fencing.token = ${old}`));
      await refused(() => run(c, write("lost")));
      await run(c, `SET fencing.token = ${token}`);
      await run(c, write("kept"));
      return cell;
    }),
    "old-local": connected(async (connect) => {
      const [old, token, c] = [takeover(), takeover(), await connect()];
      await run(c, "BEGIN");
      const cell = await refused(() => run(c, `SET LOCAL fencing.token = ${old}`));
      await run(c, "ROLLBACK");
      await run(c, "BEGIN");
      await run(c, `SET LOCAL fencing.token = ${token}`);
      await run(c, write("kept"));
      await run(c, "COMMIT");
      return cell;
    }),
    idle: connected(async (connect) => {
      const c = await connect(takeover());
      await run(c, write("kept"));
      takeover();
      return refused(() => run(c, write("lost")));
    }),
    transaction: connected(async (connect) => {
      const c = await connect(takeover());
      await run(c, write("kept"));
      await run(c, "BEGIN");
      await run(c, write("lost"));
      takeover();
      return refused(() => run(c, "COMMIT"));
    }),
    statement: connected(async (connect) => {
      const c = await connect(takeover());
      await run(c, write("kept"));
      takeover("asleep");
      return refused(() => run(c, slow()));
    }),
    fields: connected(async (connect) => {
      const [old, c] = [takeover(), await connect(takeover())];
      await run(c, write("kept"));
      const error = await run(c, `SET fencing.token = ${old}`).catch((e) => e);
      assert.equal(error.code, "PF001");
      assert.match(error.detail, /^The mark of scope /);
      assert.match(error.hint, /^This process is no longer the leader\. /);
    }),
  });
  return connected;
}

async function main(version) {
  console.log("version:", version);
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (process.argv.length > 2 && !process.argv.includes(name)) continue;
    now = name;
    let cell;
    const ended = new Promise((resolve) => {
      setTimeout(resolve, 15000, "hangs");
      process.removeAllListeners("uncaughtException");
      process.once("uncaughtException", () => resolve("crash"));
    });
    try {
      cell = (await Promise.race([scenario(), ended])) ?? "ok";
    } catch (e) {
      const place = e.stack?.match(/[\w-]+\.js:\d+/g)?.at(0);
      cell = `FAILED at ${place}: ${e.message}`.replaceAll("\n", " ");
    }
    console.log(`${name}: ${cell}`);
  }
  process.exit();
}

module.exports = { assert, common, main, refused, scenarios, slow, takeover, without, write };
