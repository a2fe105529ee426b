// Logs in with settings from the environment, and prints whether the connection to PostgreSQL is encrypted.
const fs = require("fs");
const { Client } = require("pg");

const encrypted = process.env.PGSSLMODE === "verify-full";
delete process.env.PGSSLMODE;
const client = new Client({
  ssl: encrypted ? { ca: fs.readFileSync(process.env.PGSSLROOTCERT) } : false,
  enableChannelBinding: process.env.PGCHANNELBINDING === "prefer",
});
client
  .connect()
  .then(() => client.query(process.argv[3]))
  .then((result) => console.log(result.rows[0].ssl))
  .then(() => client.end())
  .catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
