//! A server with data to write, and the proxy in front of it.

use std::collections::HashMap;

use super::conversation::Database;
use super::{steering, tables};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Endpoint, Wire};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    Template,
    Watched,
    /// Reached without the proxy.
    Twin,
}

pub fn name_of(database: Database, copy: Copy) -> String {
    let of = match copy {
        Copy::Template => "template",
        Copy::Watched => "watched",
        Copy::Twin => "twin",
    };
    format!("{of}_{}", database.encoding().to_lowercase())
}

/// `log` and `counter` belong to no scope, other [`tables`] to those in the policy. A row of `log` has the token that
/// PostgreSQL knew when it was written. Functions do what their names say, hidden from any parser.
const WORLD: &str = "
    CREATE TABLE log (what text, token text);
    INSERT INTO log VALUES ('first', 'nobody');
    CREATE FUNCTION stamps() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN NEW.token := current_setting('fencing.token', true); RETURN NEW; END $$;
    CREATE TRIGGER stamps BEFORE INSERT OR UPDATE ON log FOR EACH ROW EXECUTE FUNCTION stamps();
    CREATE SEQUENCE counter;
    CREATE FUNCTION w() RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN INSERT INTO public.log VALUES ('w'); RETURN 1; END $$;
    CREATE FUNCTION stable_w() RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.w(); END $$;
    CREATE FUNCTION w_of(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN public.w(); END $$;
    CREATE OPERATOR !!! (RIGHTARG = int, FUNCTION = w_of);
    CREATE VIEW v AS SELECT w() AS n;
    CREATE DOMAIN d AS text CHECK (w() > 0);
    CREATE FUNCTION sets(name text, value text) RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN RETURN pg_catalog.set_config(name, value, false); END $$;
    CREATE FUNCTION sets_local(name text, value text) RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN RETURN pg_catalog.set_config(name, value, true); END $$;
    CREATE FUNCTION runs(statement text) RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN EXECUTE statement; RETURN 1; END $$;
    CREATE SCHEMA shadow;
    CREATE FUNCTION shadow.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql IMMUTABLE
        AS $$ BEGIN PERFORM public.w(); RETURN $2; END $$;
    CREATE DOMAIN shadow.text AS pg_catalog.text CHECK (public.w() > 0)";

/// Objects for judges. A table's comment names its scopes.
const JUDGEMENT: &str = "
    CREATE FUNCTION contents() RETURNS TABLE (relation text, scopes text, rows text) LANGUAGE plpgsql AS $$
    DECLARE t regclass;
    BEGIN
        FOR t IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE relkind = 'r' AND nspname NOT LIKE 'pg_%' AND nspname <> 'information_schema'
        LOOP
            relation := t::text;
            scopes := coalesce(obj_description(t, 'pg_class'), '');
            EXECUTE format('SELECT string_agg(x::text || x.xmin::text, '';'') FROM %s AS x', t) INTO rows;
            RETURN NEXT;
        END LOOP;
    END $$;
    CREATE FUNCTION clean() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE t record;
    BEGIN
        FOR t IN SELECT relation, scopes FROM contents() LOOP
            IF t.relation LIKE '%made' THEN
                EXECUTE format('DROP TABLE %s', t.relation);
            ELSE
                EXECUTE format('DELETE FROM %s', t.relation);
            END IF;
            IF t.relation !~ '(steered|ruled|triggered|deferred|made)$' THEN
                EXECUTE format('INSERT INTO %s VALUES (%L)', t.relation,
                    CASE WHEN t.scopes LIKE '%a%' THEN 'secret' ELSE 'first' END);
            END IF;
        END LOOP;
        PERFORM setval('counter', 1, false);
    END $$;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
    GRANT ALL ON SEQUENCE counter TO PUBLIC;
    SELECT clean()";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// No policy: every write needs the token of scope `default`.
    Plain,
    /// The tables of `a` and `b` belong to scopes of that name.
    Governed,
    /// As `Plain`, and clients share server connections. Who takes over has its own.
    Shared,
}

impl Rules {
    fn policy(self) -> Option<String> {
        match self {
            Self::Plain => None,
            Self::Governed => Some(tables::policy()),
            Self::Shared => Some(format!(
                "[[session]]\nmatch = {{ application_name = \"{TAKER}\" }}\npool = \"session\"\n"
            )),
        }
    }
}

/// Application name of sessions that take over.
const TAKER: &str = "taker";

/// One server and one proxy, used by nothing else, so that every change comes from a conversation.
#[derive(Debug)]
pub struct World {
    proxy: Proxy,
    postgres: Postgres,
    _policy: Option<PolicyFile>,
    oids: HashMap<(Database, String), u32>,
}

impl World {
    /// Whether a signal ended a process of PostgreSQL, which closes all of its connections.
    pub fn has_crashed(&self) -> bool {
        self.postgres.log().contains("was terminated by signal")
    }

    pub fn start(rules: Rules, flags: &[String]) -> Self {
        let postgres = Postgres::start_with(
            Auth::Trust,
            &[
                "autovacuum=off",
                "checkpoint_timeout=1h",
                "max_wal_size=4GB",
            ],
        );
        postgres.sql("CREATE ROLE app");
        for role in ["a", "b", "free", "careful"] {
            postgres.sql(&format!("CREATE ROLE {role} SUPERUSER LOGIN"));
        }
        if postgres.version() >= 15 {
            postgres.sql("CREATE EXTENSION pg_walinspect");
        }
        let mut options = Options::new(&postgres).flag("--witness", "off");
        let policy = rules.policy().map(|text| PolicyFile::new(&text));
        if let Some(policy) = &policy {
            options = options.flag("--policy", &policy.path().display().to_string());
        }
        options.flags.extend_from_slice(flags);
        let proxy = Proxy::start_with(options);
        let mut world = Self {
            oids: HashMap::new(),
            proxy,
            postgres,
            _policy: policy,
        };
        world.create(Database::Utf8);
        for scope in ["default", "other", "a", "b"] {
            world.declare(&format!("{scope}=10"));
        }
        world
    }

    pub fn create(&mut self, database: Database) {
        let template = name_of(database, Copy::Template);
        self.postgres.sql(&format!(
            "CREATE DATABASE {template} TEMPLATE template0 ENCODING '{}' LC_COLLATE 'C' LC_CTYPE 'C'",
            database.encoding()
        ));
        let mut admin = self.admin(&template);
        if database != Database::SqlAscii {
            admin.ok("SET client_encoding = 'UTF8'");
        }
        admin.ok(WORLD);
        admin.ok(steering::WORLD);
        for statement in tables::statements() {
            // Not every encoding has the letters of every name.
            admin.query(&statement);
        }
        admin.ok(&steering::tables("public", ""));
        admin.ok(&steering::tables("b", "b"));
        admin.ok(JUDGEMENT);
        drop(admin);
        for copy in [Copy::Watched, Copy::Twin] {
            self.copy_template(database, copy);
        }
        self.oids.extend(self.functions(database));
    }

    /// By signature. All copies have the same OIDs.
    fn functions(&self, database: Database) -> Vec<((Database, String), u32)> {
        let sql = "SELECT oid::regprocedure::text, oid::int8 FROM pg_proc
            WHERE pronamespace = 'public'::regnamespace OR proname IN ('lo_create', 'pg_notify', 'txid_current')";
        let rows = self.admin(&name_of(database, Copy::Watched)).rows(sql);
        let parsed = rows.into_iter().map(|row| {
            let [signature, oid] = <[String; 2]>::try_from(row).expect("two columns");
            let function = (database, signature.replace(',', ", "));
            (function, oid.parse().expect("a number"))
        });
        parsed.collect()
    }

    pub fn endpoint(&self) -> Endpoint {
        self.proxy.endpoint()
    }

    pub fn direct(&self) -> Endpoint {
        self.postgres.socket()
    }

    pub fn oid(&self, database: Database, function: &str) -> u32 {
        let known = self.oids.get(&(database, function.to_owned()));
        known.copied().unwrap_or_default()
    }

    /// Superuser session, directly on a database of the server.
    pub fn admin(&self, database: &str) -> Wire {
        session(&self.postgres.socket(), database)
    }

    /// Declares a token in a separate session, which then ends.
    pub fn declare(&self, token: &str) -> bool {
        let more = [("fencing.token", token), ("application_name", TAKER)];
        let mut wire = Wire::open(&self.endpoint(), &more);
        let accepted = wire
            .until_ready()
            .last()
            .is_some_and(|last| last.tag == b'Z');
        wire.send(&pgpalisade_test_servers::wire::Batch::new().terminate());
        accepted
    }

    pub fn restore(&self, database: Database, copy: Copy) {
        let prepared = self
            .postgres
            .sql("SELECT gid, database FROM pg_prepared_xacts");
        for row in prepared {
            let [gid, database] = <[String; 2]>::try_from(row).expect("two columns");
            self.admin(&database)
                .query(&format!("ROLLBACK PREPARED '{gid}'"));
        }
        let name = name_of(database, copy);
        self.postgres
            .sql(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        self.copy_template(database, copy);
    }

    fn copy_template(&self, database: Database, copy: Copy) {
        let (name, template) = (name_of(database, copy), name_of(database, Copy::Template));
        // The only one of PostgreSQL 14, which has no word for it.
        let strategy = match self.postgres.version() {
            ..15 => "",
            _ => "STRATEGY file_copy",
        };
        self.postgres.sql(&format!(
            "CREATE DATABASE {name} TEMPLATE {template} {strategy}"
        ));
    }
}

fn session(endpoint: &Endpoint, database: &str) -> Wire {
    Wire::login(endpoint, &[("user", "postgres"), ("database", database)])
}
