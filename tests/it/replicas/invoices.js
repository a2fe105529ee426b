// Writes one invoice after the other: a worker of Graphile Worker. The jobs are in a queue, of which one worker at a
// time has the lock.
//
// libpq's environment (PGHOST, PGPORT, ..) names the server.

const { run } = require("graphile-worker");

async function invoice(_payload, { withPgClient, addJob }) {
  await withPgClient(async (db) => {
    const { rows } = await db.query("SELECT coalesce(max(number), 0) AS last FROM invoices");
    await db.query("INSERT INTO invoices VALUES ($1)", [rows[0].last + 1]);
  });
  await addJob("invoice", {}, { queueName: "invoices" });
}

const intervals = { pollInterval: 100, minResetLockedInterval: 500, maxResetLockedInterval: 500 };
run({ connectionString: "postgres://", taskList: { invoice }, ...intervals })
  .then((runner) => runner.promise)
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
