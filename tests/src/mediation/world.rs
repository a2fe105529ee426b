//! A server with something to write to, and the proxy in front of it.

use std::collections::HashMap;

use crate::policy::PolicyFile;
use crate::postgres::{Auth, Postgres};
use crate::proxy::{Options, Proxy};
use crate::wire::{Endpoint, Wire};

/// The database that conversations go to. It can be made anew from `TEMPLATE`.
pub const WATCHED: &str = "watched";
/// One like it that nothing stands in front of.
pub const TWIN: &str = "twin";
const TEMPLATE: &str = "template";

/// `log` and `counter` belong to nobody, `a.jobs` and `b.jobs` to scopes where the policy says so. A row of `log` has
/// the token that PostgreSQL knew when it was written. The functions do what their names say, where no parser sees it.
const WORLD: &str = "
    CREATE TABLE log (what text, token text);
    INSERT INTO log VALUES ('first', 'nobody');
    CREATE FUNCTION stamps() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN NEW.token := current_setting('fencing.token', true); RETURN NEW; END $$;
    CREATE TRIGGER stamps BEFORE INSERT OR UPDATE ON log FOR EACH ROW EXECUTE FUNCTION stamps();
    CREATE SEQUENCE counter;
    CREATE SCHEMA a;
    CREATE TABLE a.jobs (LIKE log);
    CREATE SCHEMA b;
    CREATE TABLE b.jobs (LIKE log);
    INSERT INTO a.jobs VALUES ('first');
    CREATE FUNCTION w() RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN INSERT INTO public.log VALUES ('w'); RETURN 1; END $$;
    CREATE FUNCTION stable_w() RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.w(); END $$;
    CREATE FUNCTION w_of(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN public.w(); END $$;
    CREATE OPERATOR !!! (RIGHTARG = int, FUNCTION = w_of);
    CREATE VIEW v AS SELECT w() AS n;
    CREATE DOMAIN d AS text CHECK (w() > 0);
    CREATE FUNCTION sets(name text, value text) RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN RETURN set_config(name, value, false); END $$;
    CREATE FUNCTION sets_local(name text, value text) RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN RETURN set_config(name, value, true); END $$;
    CREATE FUNCTION runs(statement text) RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN EXECUTE statement; RETURN 1; END $$;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
    GRANT ALL ON SEQUENCE counter TO PUBLIC";

/// The tokens that are stale in it: below 10.
const POLICY: &str = "
    [scope.a]
    tables = [\"a.*\"]
    [scope.b]
    tables = [\"b.*\"]";

/// What the proxy is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// No policy: every write needs the token of scope `default`.
    Plain,
    /// The tables of `a` and `b` belong to scopes of that name.
    Governed,
}

/// One server, one proxy. Nobody else is on either, so that what changes there was changed by a conversation.
#[derive(Debug)]
pub struct World {
    proxy: Proxy,
    postgres: Postgres,
    _policy: PolicyFile,
    oids: HashMap<String, u32>,
}

impl World {
    /// Starts both.
    pub fn start(rules: Rules) -> Self {
        let postgres = Postgres::start_with(
            Auth::Trust,
            &[
                "autovacuum=off",
                "checkpoint_timeout=1h",
                "max_wal_size=4GB",
            ],
        );
        postgres.sql("CREATE ROLE app");
        postgres.sql("CREATE EXTENSION pg_walinspect");
        postgres.sql(&format!("CREATE DATABASE {TEMPLATE}"));
        session(&postgres.socket(), TEMPLATE).ok(WORLD);
        for copy in [WATCHED, TWIN] {
            postgres.sql(&format!("CREATE DATABASE {copy} TEMPLATE {TEMPLATE}"));
        }
        let mut options = Options::new(&postgres).flag("--witness", "off");
        let policy = PolicyFile::new(POLICY);
        if rules == Rules::Governed {
            options = options.flag("--policy", &policy.path().display().to_string());
        }
        let proxy = Proxy::start_with(options);
        let world = Self {
            oids: oids(&postgres),
            proxy,
            postgres,
            _policy: policy,
        };
        for scope in ["default", "other", "a", "b"] {
            world.declare(&format!("{scope}=10"));
        }
        world
    }

    /// Where conversations go.
    pub fn endpoint(&self) -> Endpoint {
        self.proxy.endpoint()
    }

    /// The server behind it.
    pub fn direct(&self) -> Endpoint {
        self.postgres.socket()
    }

    /// The number of a function by its signature.
    pub fn oid(&self, function: &str) -> u32 {
        self.oids.get(function).copied().unwrap_or_default()
    }

    /// A superuser's session, straight to a database of the server.
    pub fn admin(&self, database: &str) -> Wire {
        session(&self.postgres.socket(), database)
    }

    /// Has a session of its own declare a token, and end.
    pub fn declare(&self, token: &str) -> bool {
        let mut wire = Wire::connect(&self.endpoint());
        wire.startup(
            crate::wire::PROTOCOL_3_0,
            &[
                ("user", "postgres"),
                ("database", WATCHED),
                ("fencing.token", token),
            ],
        );
        let accepted = wire
            .until_ready()
            .last()
            .is_some_and(|last| last.tag == b'Z');
        wire.send(&crate::wire::Batch::new().terminate());
        accepted
    }

    /// Puts a database back to what it was.
    pub fn restore(&self, database: &str) {
        for gid in self
            .postgres
            .sql("SELECT gid FROM pg_prepared_xacts")
            .concat()
        {
            for database in [WATCHED, TWIN] {
                self.admin(database)
                    .query(&format!("ROLLBACK PREPARED '{gid}'"));
            }
        }
        self.postgres
            .sql(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"));
        self.postgres.sql(&format!(
            "CREATE DATABASE {database} TEMPLATE {TEMPLATE} STRATEGY file_copy"
        ));
    }
}

fn session(endpoint: &Endpoint, database: &str) -> Wire {
    Wire::login(endpoint, &[("user", "postgres"), ("database", database)])
}

/// A copy of a database has the same numbers.
fn oids(postgres: &Postgres) -> HashMap<String, u32> {
    let sql = "SELECT oid::regprocedure::text, oid::int8 FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace OR proname IN ('lo_create', 'pg_notify', 'txid_current')";
    let rows = session(&postgres.socket(), WATCHED).rows(sql);
    let parsed = rows.into_iter().map(|row| {
        let [signature, oid] = <[String; 2]>::try_from(row).expect("two columns");
        (signature.replace(',', ", "), oid.parse().expect("a number"))
    });
    parsed.collect()
}
