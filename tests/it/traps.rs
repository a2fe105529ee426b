//! The control role runs no foreign code, whatever was created first or attached later.

use pgpalisade_test_servers::machine::{PATIENCE, wait_until};
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

/// As the proxy creates it, with an insertion before its end.
macro_rules! mark {
    ($more:literal) => {
        mark!($more, "")
    };
    ($more:literal, $then:literal) => {
        concat!(
            "CREATE TABLE pgpalisade.mark (scope text PRIMARY KEY, token int8 NOT NULL, raised_at int8 NOT NULL, \
             raised_by text NOT NULL, incarnation int8 NOT NULL DEFAULT 0",
            $more,
            "); GRANT ALL ON pgpalisade.mark TO PUBLIC; ",
            $then
        )
    };
}

const TRIGGER: &str = mark!(
    "",
    "CREATE TRIGGER fire BEFORE INSERT ON pgpalisade.mark EXECUTE FUNCTION traps.fire()"
);
const GIVE: &str =
    "ALTER SCHEMA pgpalisade OWNER TO postgres; ALTER TABLE pgpalisade.mark OWNER TO postgres";

/// The deceived role, mallory's objects, a superuser's later actions, and the refusal. An empty one: it serves.
const MADE_FIRST: [(&str, &str, &str, &[&str]); 28] = [
    // Each way to own it.
    ("postgres", "", "", &["schema pgpalisade (role mallory)"]),
    ("control", "", "", &["schema pgpalisade (role mallory)"]),
    (
        "postgres",
        mark!(""),
        "",
        &["relation pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        mark!(""),
        "ALTER SCHEMA pgpalisade OWNER TO postgres",
        &["relation pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        mark!(""),
        "ALTER TABLE pgpalisade.mark OWNER TO postgres",
        &["schema pgpalisade (role mallory)"],
    ),
    (
        "postgres",
        mark!(""),
        "CREATE ROLE club; GRANT club TO mallory, control; ALTER SCHEMA pgpalisade OWNER TO club; \
        ALTER TABLE pgpalisade.mark OWNER TO club",
        &[
            "schema pgpalisade (role club)",
            "pgpalisade.mark (role club)",
        ],
    ),
    (
        "control",
        mark!(""),
        "ALTER SCHEMA pgpalisade OWNER TO club; ALTER TABLE pgpalisade.mark OWNER TO club",
        &["schema pgpalisade (role club)"],
    ),
    // Each kind of object that remains when the table is given to a superuser.
    (
        "postgres",
        TRIGGER,
        "",
        &["trigger fire of pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        TRIGGER,
        GIVE,
        &["trigger fire of pgpalisade.mark (role mallory)"],
    ),
    (
        "control",
        TRIGGER,
        GIVE,
        &["trigger fire of pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        mark!(
            "",
            "CREATE RULE also AS ON UPDATE TO pgpalisade.mark DO ALSO SELECT traps.spring()"
        ),
        GIVE,
        &["rule also of pgpalisade.mark"],
    ),
    (
        "postgres",
        "CREATE VIEW pgpalisade.mark AS SELECT 'a' AS scope, traps.spring()::int8 AS token, 0::int8 AS raised_at, \
        'b' AS raised_by, 0::int8 AS incarnation",
        "",
        &["pgpalisade.mark, which is no table (role mallory)"],
    ),
    (
        "control",
        mark!(
            "",
            "ALTER TABLE pgpalisade.mark ENABLE ROW LEVEL SECURITY; \
        CREATE POLICY p ON pgpalisade.mark USING (traps.spring() = 0)"
        ),
        GIVE,
        &[
            "row security of pgpalisade.mark",
            "policy p of pgpalisade.mark",
        ],
    ),
    (
        "postgres",
        mark!(", more int DEFAULT traps.spring()"),
        GIVE,
        &["default of a column of pgpalisade.mark"],
    ),
    (
        "postgres",
        mark!(", more int GENERATED ALWAYS AS (traps.spring()) STORED"),
        GIVE,
        &["default of a column of"],
    ),
    (
        "postgres",
        mark!(", CHECK (traps.spring() = 0)"),
        GIVE,
        &["constraint mark_check of pgpalisade.mark"],
    ),
    // PostgreSQL's own function runs any text.
    (
        "postgres",
        mark!(", CHECK (query_to_xml('SELECT traps.spring()', true, true, '') IS NOT NULL)"),
        GIVE,
        &["constraint mark_check of pgpalisade.mark"],
    ),
    (
        "postgres",
        mark!(
            "",
            "CREATE INDEX trap ON pgpalisade.mark ((traps.spring() + token))"
        ),
        GIVE,
        &["index trap of pgpalisade.mark"],
    ),
    (
        "postgres",
        mark!(
            "",
            "CREATE INDEX trap ON pgpalisade.mark (token) WHERE traps.spring() = token"
        ),
        GIVE,
        &["index trap of pgpalisade.mark"],
    ),
    (
        "postgres",
        mark!(", more traps.fine"),
        GIVE,
        &["type of column more of pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        mark!(", FOREIGN KEY (scope) REFERENCES traps.scopes"),
        GIVE,
        &["constraint mark_scope_fkey of"],
    ),
    (
        "postgres",
        mark!(
            "",
            "CREATE TABLE traps.own (scope text REFERENCES pgpalisade.mark)"
        ),
        GIVE,
        &["trigger "],
    ),
    (
        "postgres",
        "CREATE TABLE pgpalisade.mark OF traps.line (PRIMARY KEY (scope))",
        GIVE,
        &["type of pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        mark!("", "CREATE TABLE traps.heir () INHERITS (pgpalisade.mark)"),
        GIVE,
        &["heir, which inherits from pgpalisade.mark (role mallory)"],
    ),
    (
        "postgres",
        "CREATE TABLE traps.old (scope text); CREATE TABLE pgpalisade.mark (PRIMARY KEY (scope), token int8, \
        raised_at int8, raised_by text, incarnation int8) INHERITS (traps.old)",
        GIVE,
        &["old, from which pgpalisade.mark inherits (role mallory)"],
    ),
    (
        "postgres",
        "CREATE FUNCTION pgpalisade.other(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        GIVE_SCHEMA,
        &["function pgpalisade.other(integer) (role mallory)"],
    ),
    // Operators that match better than PostgreSQL's own, in a schema of the control role's path.
    (
        "postgres",
        "CREATE SCHEMA postgres; CREATE OPERATOR postgres.* (FUNCTION = traps.times, LEFTARG = numeric, \
        RIGHTARG = int); DROP SCHEMA pgpalisade",
        "",
        &[],
    ),
    (
        "postgres",
        "DROP SCHEMA pgpalisade",
        "GRANT ALL ON SCHEMA traps TO PUBLIC; ALTER ROLE postgres SET search_path = \
        traps, pg_catalog",
        &[],
    ),
];
const GIVE_SCHEMA: &str = "ALTER SCHEMA pgpalisade OWNER TO postgres";

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
    for (at, (role, made, given, says)) in MADE_FIRST.into_iter().enumerate() {
        proxy.terminate();
        let database = format!("d{at}");
        den.database(&database);
        den.session("mallory", &database).ok(made);
        den.session("postgres", &database).ok(given);
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
        let mut fault =
            |what: &str| faults.push(format!("{at}: {role}, {made}{given}: {what}\n{said}"));
        if den.is_sprung(&mut seen) {
            fault("it is sprung");
        }
        if started.is_ok() != says.is_empty() {
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
const ATTACHED_LATER: [(&str, &str, &str); 6] = [
    (
        "GRANT TRIGGER ON pgpalisade.mark TO mallory",
        "CREATE TRIGGER fire BEFORE INSERT ON pgpalisade.mark EXECUTE FUNCTION traps.fire()",
        "trigger fire of pgpalisade.mark (role mallory)",
    ),
    (
        "GRANT REFERENCES ON pgpalisade.mark TO mallory",
        "CREATE TABLE traps.own (scope text REFERENCES pgpalisade.mark ON UPDATE CASCADE)",
        "trigger ",
    ),
    (
        "ALTER TABLE pgpalisade.mark OWNER TO mallory",
        "ALTER TABLE pgpalisade.mark ADD more int DEFAULT traps.spring()",
        "relation pgpalisade.mark (role mallory)",
    ),
    (
        "CREATE ROLE club; GRANT club TO mallory; GRANT ALL ON SCHEMA pgpalisade TO club; \
        ALTER TABLE pgpalisade.mark OWNER TO club",
        "CREATE INDEX trap ON pgpalisade.mark ((traps.spring() + token))",
        "index trap of pgpalisade.mark (role club)",
    ),
    (
        "DROP SCHEMA pgpalisade CASCADE",
        concat!(
            "CREATE SCHEMA pgpalisade; ",
            mark!(""),
            "CREATE TRIGGER fire BEFORE INSERT ON pgpalisade.mark \
            EXECUTE FUNCTION traps.fire()"
        ),
        "schema pgpalisade (role mallory)",
    ),
    (
        "DROP TABLE pgpalisade.mark; GRANT ALL ON SCHEMA pgpalisade TO mallory",
        "CREATE VIEW pgpalisade.mark AS SELECT 'a' AS scope, traps.spring()::int8 AS token, 0::int8 AS raised_at, \
            'b' AS raised_by, 0::int8 AS incarnation",
        "pgpalisade.mark, which is no table (role mallory)",
    ),
];

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
    for (given, made, says) in ATTACHED_LATER {
        token += 1;
        let served = declare(&proxy, token);
        assert!(!served.contains("PF006"), "{served}");
        den.postgres
            .sql("GRANT USAGE ON SCHEMA pgpalisade TO PUBLIC");
        den.session("postgres", "postgres").ok(given);
        den.session("mallory", "postgres").ok(made);
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
    mallory.ok(
        "BEGIN; CREATE TRIGGER fire BEFORE INSERT ON pgpalisade.mark EXECUTE FUNCTION traps.fire()",
    );
    let refused = std::thread::scope(|threads| {
        let declaring = threads.spawn(|| declare(&proxy, 1));
        wait_until("the declaration to wait for the lock", || {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pgpalisade.mark'::regclass";
            den.postgres.value(waiting) != "0"
        });
        mallory.ok("COMMIT");
        declaring.join().unwrap()
    });
    assert!(
        refused.contains("trigger fire of pgpalisade.mark (role mallory)"),
        "{refused}"
    );
    assert!(!den.is_sprung(&mut 0));
}

#[test]
fn check_says_whose_it_is() {
    let den = Den::new();
    let mut proxy = Proxy::start(&den.postgres);
    proxy.terminate();
    den.database("d");
    den.session("mallory", "d").ok(TRIGGER);
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
