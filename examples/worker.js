// Does jobs while it holds a lease of the proxy: npm ci, node worker.js
//
// libpq's environment (PGHOST, PGPORT, ..) names the proxy. A deposed worker ends with an error; its supervisor starts
// it again, as a candidate.

const { Client } = require("pg");
const { setTimeout: sleep } = require("node:timers/promises");

const LEASE = "SET fencing.token = 'lease:4s'"; // longer in production

function end(error) {
  console.error("ends:", error.code, error.message);
  process.exit(1);
}

async function connect(options, onError) {
  const client = new Client({ options });
  client.on("error", onError); // the connection was ended while idle
  await client.connect();
  await client.query("SHOW fencing.status"); // fails on a server other than pgpalisade, which would accept any token
  return client;
}

// Takes the lease, and renews it as long as the session lives. A late write is refused in any case.
async function lead() {
  let renewing;
  const election = await connect("", () => clearInterval(renewing));
  for (;;) {
    try {
      await election.query(LEASE);
      break;
    } catch (error) {
      if (error.code !== "55P03") throw error; // 55P03: another process leads
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
  renewing = setInterval(() => election.query(LEASE).catch(() => clearInterval(renewing)), 1000);
  return (await election.query("SHOW fencing.token")).rows[0]["fencing.token"];
}

async function invoice(db) {
  await db.query("BEGIN");
  await db.query("INSERT INTO jobs (name) VALUES ('invoice')");
  await sleep(200); // the rest of the job
  await db.query("COMMIT");
}

async function main() {
  const token = await lead();
  console.log("leads with token", token);
  const db = await connect(`-c fencing.token=${token}`, end);
  for (;;) await invoice(db);
}

main().catch(end);
