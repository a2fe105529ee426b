//! The control role runs no foreign code, whatever was created first or attached later.

use pgpalisade_test_servers::machine::{PATIENCE, assert_says, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Wire, pretty};

/// Objects that an ordinary role can create. The log shows the role of each call, even if that was undone.
const TRAPS: &str = "CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO PUBLIC;
    CREATE FUNCTION traps.spring() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
        RAISE LOG 'sprung as %', current_user; RETURN 0; END $$;
    CREATE FUNCTION traps.fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM traps.spring();
        IF current_user = 'postgres' THEN ALTER ROLE mallory SUPERUSER; END IF;
        RETURN NEW; END $$;
    CREATE FUNCTION traps.times(numeric, int) RETURNS numeric LANGUAGE sql AS $$ SELECT traps.spring()::numeric $$;
    CREATE OPERATOR traps.* (FUNCTION = traps.times, LEFTARG = numeric, RIGHTARG = int);
    CREATE DOMAIN traps.fine AS text CHECK (traps.spring() = 0);
    CREATE TYPE traps.line AS (scope text, token int8, raised_at int8, raised_by text, incarnation int8);
    CREATE TABLE traps.scopes (scope text PRIMARY KEY);
    CREATE SCHEMA pgpalisade; GRANT ALL ON SCHEMA pgpalisade TO PUBLIC;";

/// The table as the proxy creates it, up to the end of its columns.
const MARK: &str = "CREATE TABLE pgpalisade.mark (scope text PRIMARY KEY, token int8 NOT NULL, \
    raised_at int8 NOT NULL, raised_by text NOT NULL, incarnation int8 NOT NULL DEFAULT 0";
const VIEW: &str = "CREATE VIEW pgpalisade.mark AS SELECT 'a' AS scope, traps.spring()::int8 AS token, \
    0::int8 AS raised_at, 'b' AS raised_by, 0::int8 AS incarnation";
const TRIGGER: &str =
    "CREATE TRIGGER fire BEFORE INSERT ON pgpalisade.mark EXECUTE FUNCTION traps.fire()";
const GIVE: &str =
    "ALTER SCHEMA pgpalisade OWNER TO postgres; ALTER TABLE pgpalisade.mark OWNER TO postgres";

/// SQL of the tables below.
fn sql(text: &str) -> String {
    let text = text
        .replace("GIVE", GIVE)
        .replace("VIEW", VIEW)
        .replace("TRIGGER fire", TRIGGER);
    if text.contains("MARK") {
        text.replace("MARK", MARK) + "; GRANT ALL ON pgpalisade.mark TO PUBLIC"
    } else {
        text
    }
}

/// The deceived role, mallory's objects, a superuser's later actions, and the refusal. An empty one: it serves.
const MADE_FIRST: &str = "
# Each way to own it.
postgres | | | schema pgpalisade (role mallory)
control | | | schema pgpalisade (role mallory)
postgres | MARK) | | relation pgpalisade.mark (role mallory)
postgres | MARK) | ALTER SCHEMA pgpalisade OWNER TO postgres | relation pgpalisade.mark (role mallory)
postgres | MARK) | ALTER TABLE pgpalisade.mark OWNER TO postgres | schema pgpalisade (role mallory)
postgres | MARK) | CREATE ROLE club; GRANT club TO mallory, control; ALTER SCHEMA pgpalisade OWNER TO club; \
    ALTER TABLE pgpalisade.mark OWNER TO club | schema pgpalisade (role club) | pgpalisade.mark (role club)
control | MARK) | ALTER SCHEMA pgpalisade OWNER TO club; ALTER TABLE pgpalisade.mark OWNER TO club \
    | schema pgpalisade (role club)
# Each kind of object that remains when the table is given to a superuser.
postgres | MARK); TRIGGER fire | | trigger fire of pgpalisade.mark (role mallory)
postgres | MARK); TRIGGER fire | GIVE | trigger fire of pgpalisade.mark (role mallory)
control | MARK); TRIGGER fire | GIVE | trigger fire of pgpalisade.mark (role mallory)
postgres | MARK); CREATE RULE also AS ON UPDATE TO pgpalisade.mark DO ALSO SELECT traps.spring() | GIVE \
    | rule also of pgpalisade.mark
postgres | VIEW | | pgpalisade.mark, which is no table (role mallory)
control | MARK); ALTER TABLE pgpalisade.mark ENABLE ROW LEVEL SECURITY; \
    CREATE POLICY p ON pgpalisade.mark USING (traps.spring() = 0) | GIVE \
    | row security of pgpalisade.mark | policy p of pgpalisade.mark
postgres | MARK, more int DEFAULT traps.spring()) | GIVE | default of a column of pgpalisade.mark
postgres | MARK, more int GENERATED ALWAYS AS (traps.spring()) STORED) | GIVE | default of a column of
postgres | MARK, CHECK (traps.spring() = 0)) | GIVE | constraint mark_check of pgpalisade.mark
# PostgreSQL's own function runs any text.
postgres | MARK, CHECK (query_to_xml('SELECT traps.spring()', true, true, '') IS NOT NULL)) | GIVE \
    | constraint mark_check of pgpalisade.mark
postgres | MARK); CREATE INDEX trap ON pgpalisade.mark ((traps.spring() + token)) | GIVE \
    | index trap of pgpalisade.mark
postgres | MARK); CREATE INDEX trap ON pgpalisade.mark (token) WHERE traps.spring() = token | GIVE \
    | index trap of pgpalisade.mark
postgres | MARK, more traps.fine) | GIVE | type of column more of pgpalisade.mark (role mallory)
postgres | MARK, FOREIGN KEY (scope) REFERENCES traps.scopes) | GIVE | constraint mark_scope_fkey of
postgres | MARK); CREATE TABLE traps.own (scope text REFERENCES pgpalisade.mark) | GIVE | trigger
postgres | CREATE TABLE pgpalisade.mark OF traps.line (PRIMARY KEY (scope)) | GIVE \
    | type of pgpalisade.mark (role mallory)
postgres | MARK); CREATE TABLE traps.heir () INHERITS (pgpalisade.mark) | GIVE \
    | heir, which inherits from pgpalisade.mark (role mallory)
postgres | CREATE TABLE traps.old (scope text); CREATE TABLE pgpalisade.mark (PRIMARY KEY (scope), token int8, \
    raised_at int8, raised_by text, incarnation int8) INHERITS (traps.old) | GIVE \
    | old, from which pgpalisade.mark inherits (role mallory)
postgres | CREATE FUNCTION pgpalisade.other(int) RETURNS int LANGUAGE sql AS 'SELECT 1' \
    | ALTER SCHEMA pgpalisade OWNER TO postgres | function pgpalisade.other(integer) (role mallory)
# Operators that match better than PostgreSQL's own, in a schema of the control role's path.
postgres | CREATE SCHEMA postgres; CREATE OPERATOR postgres.* (FUNCTION = traps.times, LEFTARG = numeric, \
    RIGHTARG = int); DROP SCHEMA pgpalisade | |
postgres | DROP SCHEMA pgpalisade \
    | GRANT ALL ON SCHEMA traps TO PUBLIC; ALTER ROLE postgres SET search_path = traps, pg_catalog |
";

/// Columns of the rows of a table.
fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = table
        .lines()
        .filter(|line| line.contains('|') && !line.starts_with('#'));
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// A server with mallory, who may create schemas in the database of the control connection.
struct Den {
    postgres: Postgres,
}

impl Den {
    fn new() -> Self {
        let postgres = Postgres::start();
        postgres.sql("CREATE ROLE mallory LOGIN; CREATE ROLE control LOGIN");
        postgres.sql("GRANT pg_signal_backend, pg_read_all_stats TO control");
        Self { postgres }
    }

    fn session(&self, user: &str, database: &str) -> Wire {
        let parameters = [("user", user), ("database", database)];
        Wire::login(&self.postgres.socket(), &parameters)
    }

    fn database(&self, name: &str) {
        self.postgres.sql(&format!("CREATE DATABASE {name}"));
        self.postgres.sql(&format!(
            "GRANT CREATE ON DATABASE {name} TO mallory, control"
        ));
        self.session("mallory", name).ok(TRAPS);
    }

    /// Whether anything ran as another role since the last call.
    fn is_sprung(&self, seen: &mut usize) -> bool {
        let log = self.postgres.log();
        let superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'";
        let is_superuser = self.postgres.value(superuser) == "t";
        self.postgres.sql("ALTER ROLE mallory NOSUPERUSER");
        let sprung = |user: &str| log.matches(&format!("sprung as {user}")).count();
        let count = sprung("postgres") + sprung("control");
        std::mem::replace(seen, count) != count || is_superuser
    }
}

/// Reply to a leader.
fn declare(proxy: &Proxy, token: usize) -> String {
    let mut session = Wire::connect(&proxy.endpoint());
    pretty(&session.start_as_leader(&token.to_string()))
}

#[test]
fn what_was_made_first_is_not_run() {
    let den = Den::new();
    let mut proxy = Proxy::start(&den.postgres);
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (at, row) in rows(MADE_FIRST).enumerate() {
        let [role, made, given, says @ ..] = row.as_slice() else {
            panic!("{row:?}");
        };
        proxy.terminate();
        let database = format!("d{at}");
        den.database(&database);
        den.session("mallory", &database).ok(&sql(made));
        den.session("postgres", &database).ok(&sql(given));
        let place = Options::new(&den.postgres).control;
        let place = place.replace("user=postgres", &format!("user={role}"));
        proxy.options_mut().control =
            place.replace("dbname=postgres", &format!("dbname={database}"));
        let before = proxy.output().len();
        let started = proxy.try_restart(PATIENCE);
        if started.is_ok() {
            declare(&proxy, at + 1);
        }
        let said = proxy.output()[before..].to_owned();
        let mut fault = |what: &str| faults.push(format!("{at}: {row:?}: {what}\n{said}"));
        if den.is_sprung(&mut seen) {
            fault("it is sprung");
        }
        if started.is_ok() != (says == [""]) {
            fault("it serves, or does not");
        }
        if let Some(part) = says.iter().find(|part| !said.contains(**part)) {
            fault(&format!("it does not say {part:?}"));
        }
        den.postgres.sql("ALTER ROLE postgres RESET search_path");
        if started.is_err() {
            // The next one ends it.
            proxy.options_mut().control = Options::new(&den.postgres).control;
            proxy.restart();
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// While the proxy serves: a superuser's action, then mallory's, and the next leader's reply.
const ATTACHED_LATER: &str = "
GRANT TRIGGER ON pgpalisade.mark TO mallory | TRIGGER fire | trigger fire of pgpalisade.mark (role mallory)
GRANT REFERENCES ON pgpalisade.mark TO mallory \
    | CREATE TABLE traps.own (scope text REFERENCES pgpalisade.mark ON UPDATE CASCADE) | trigger
ALTER TABLE pgpalisade.mark OWNER TO mallory | ALTER TABLE pgpalisade.mark ADD more int DEFAULT traps.spring() \
    | relation pgpalisade.mark (role mallory)
CREATE ROLE club; GRANT club TO mallory; GRANT ALL ON SCHEMA pgpalisade TO club; \
    ALTER TABLE pgpalisade.mark OWNER TO club \
    | CREATE INDEX trap ON pgpalisade.mark ((traps.spring() + token)) | index trap of pgpalisade.mark (role club)
DROP SCHEMA pgpalisade CASCADE | CREATE SCHEMA pgpalisade; MARK); TRIGGER fire | schema pgpalisade (role mallory)
DROP TABLE pgpalisade.mark; GRANT ALL ON SCHEMA pgpalisade TO mallory | VIEW \
    | pgpalisade.mark, which is no table (role mallory)
";

#[test]
fn what_is_attached_later_is_not_run() {
    let den = Den::new();
    den.session("mallory", "postgres").ok("SELECT 1");
    den.postgres
        .sql("GRANT CREATE ON DATABASE postgres TO mallory");
    den.session("mallory", "postgres").ok(TRAPS);
    den.postgres.sql("DROP SCHEMA pgpalisade");
    let mut proxy = Proxy::start(&den.postgres);
    let (mut faults, mut seen, mut token) = (Vec::new(), 0, 0);
    for row in rows(ATTACHED_LATER) {
        let [given, made, says] = row[..] else {
            panic!("{row:?}");
        };
        token += 1;
        let served = declare(&proxy, token);
        assert!(!served.contains("PF006"), "{served}");
        den.postgres
            .sql("GRANT USAGE ON SCHEMA pgpalisade TO PUBLIC");
        den.session("postgres", "postgres").ok(given);
        den.session("mallory", "postgres").ok(&sql(made));
        token += 1;
        let refused = declare(&proxy, token);
        let fault = |what: &str| format!("{given}; {made}: {what}: {refused}");
        if den.is_sprung(&mut seen) {
            faults.push(fault("it is sprung"));
        }
        if !(refused.contains("PF006") && refused.contains(says)) {
            faults.push(fault(&format!("it does not say {says:?}")));
        }
        proxy.terminate();
        // The remedy from the refusal.
        den.postgres.sql("DROP SCHEMA pgpalisade CASCADE");
        proxy.restart();
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// mallory hopes that the trigger is created between the check and the use.
#[test]
fn a_trigger_that_is_just_made_is_waited_for() {
    let den = Den::new();
    den.postgres
        .sql("GRANT CREATE ON DATABASE postgres TO mallory");
    den.session("mallory", "postgres").ok(TRAPS);
    den.postgres.sql("DROP SCHEMA pgpalisade");
    let proxy = Proxy::start(&den.postgres);
    den.postgres.sql(
        "GRANT USAGE ON SCHEMA pgpalisade TO mallory; GRANT TRIGGER ON pgpalisade.mark TO mallory",
    );
    let mut mallory = den.session("mallory", "postgres");
    mallory.ok(&format!("BEGIN; {TRIGGER}"));
    let refused = std::thread::scope(|threads| {
        let declaring = threads.spawn(|| declare(&proxy, 1));
        wait_until("the declaration to wait for the lock", || {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pgpalisade.mark'::regclass";
            den.postgres.value(waiting) != "0"
        });
        mallory.ok("COMMIT");
        declaring.join().unwrap()
    });
    assert_says(&refused, "trigger fire of pgpalisade.mark (role mallory)");
    assert!(!den.is_sprung(&mut 0));
}

#[test]
fn check_says_whose_it_is() {
    let den = Den::new();
    let mut proxy = Proxy::start(&den.postgres);
    proxy.terminate();
    den.database("d");
    den.session("mallory", "d").ok(&sql("MARK); TRIGGER fire"));
    let control = Options::new(&den.postgres).control;
    proxy.options_mut().control = control.replace("dbname=postgres", "dbname=d");
    for command in ["check", "status", "recover"] {
        let output = proxy.subcommand(command).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("schema pgpalisade (role mallory)"), "{said}");
    }
    assert!(!den.is_sprung(&mut 0));
}
