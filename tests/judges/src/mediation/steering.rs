//! Settings that change, and all objects of a database that can change one without the text showing it.

use rand::Rng;
use rand::rngs::StdRng;

use super::conversation::{Message, Session, Sql};
use super::tables::SCHEMAS;
use super::words::{Words, once_in, one, pick};

pub type Aim = (&'static str, &'static str);

/// Setting on which the fence relies in a session that may write nothing. A function that resets
/// `transaction_read_only` makes its own transaction read-write up to PostgreSQL 15: outside the guarantee.
const ACCESS: [Aim; 1] = [("default_transaction_read_only", "off")];

/// Settings that decide which table a name means.
const MEANING: [Aim; 9] = [
    ("role", "a"),
    ("role", "b"),
    ("session_authorization", "a"),
    ("client_encoding", "LATIN1"),
    ("client_encoding", "EUC_KR"),
    ("client_encoding", "EUC_CN"),
    ("client_encoding", "EUC_JP"),
    ("client_encoding", "SJIS"),
    ("client_encoding", "UTF8"),
];

/// Settings that a session may change for itself while it holds its token.
const OWN: [Aim; 6] = [
    ("default_transaction_read_only", "on"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_read_only", "on"),
    ("transaction_read_only", "on"),
    ("transaction_read_only", "off"),
    ("default_transaction_deferrable", "on"),
];

/// Changes that need no privileges and write nothing: `$n` is the setting, `$v` the value.
const UNWRITTEN: [&str; 20] = [
    "SET $n = '$v'",
    "SET LOCAL $n = '$v'",
    "SET LOCAL $n = '$v'",
    "RESET $n",
    "SELECT set_config('$n', '$v', false)",
    "SELECT set_config('$n', '$v', true)",
    "SELECT public.sets('$n', '$v')",
    "SELECT public.sets_local('$n', '$v')",
    "SELECT '$n' OPERATOR(public.###) '$v'",
    "SELECT '$n' OPERATOR(public.####) '$v'",
    "SELECT '$n=$v'::public.steering",
    "TABLE public.steers",
    "SELECT count(*) FROM public.steers WHERE what IS NOT NULL",
    "COPY (SELECT public.sets('$n', '$v')) TO STDOUT",
    "COPY (TABLE public.steers) TO STDOUT",
    "EXPLAIN (ANALYZE, BUFFERS FALSE) SELECT public.sets('$n', '$v')",
    "VALUES (public.sets('$n', '$v'))",
    "SELECT public.runs('SET $n = ''$v''')",
    "SELECT public.runs('SET LOCAL $n = ''$v''')",
    "SELECT public.runs('RESET $n')",
];

/// Changes through writes to a table of the session, in schema `$s`: a default, a rule, immediate and deferred
/// triggers.
const WRITTEN: &str = "INSERT INTO $s.steered (what) VALUES ('x') | \
    INSERT INTO $s.ruled VALUES ('x') | INSERT INTO $s.triggered VALUES ('x') | \
    INSERT INTO $s.deferred VALUES ('x') | INSERT INTO $s.deferred VALUES ('x') | \
    WITH w AS (INSERT INTO $s.triggered VALUES ('x') RETURNING 1) TABLE w | \
    COPY $s.triggered (what) FROM STDIN | COPY $s.steered (what) FROM STDIN";

/// Queries that steer when they run, through a cursor or a name.
const QUERIES: [&str; 4] = [
    "SELECT public.sets('$n', '$v')",
    "TABLE public.steers",
    "SELECT '$n' OPERATOR(public.####) '$v'",
    "SELECT '$n=$v'::public.steering",
];

/// Objects for the statements of this module. `steer` applies the session's own parameters `aim.`.
pub const WORLD: &str = "
    CREATE FUNCTION harmless() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$;
    CREATE OPERATOR ### (LEFTARG = text, RIGHTARG = text, FUNCTION = sets);
    CREATE OPERATOR #### (LEFTARG = text, RIGHTARG = text, FUNCTION = sets_local);
    CREATE DOMAIN steering AS text
        CHECK (public.sets(split_part(VALUE, '=', 1), split_part(VALUE, '=', 2)) IS NOT NULL);
    CREATE FUNCTION steer() RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN RETURN set_config(current_setting('aim.name'), current_setting('aim.value'), false); END $$;
    CREATE FUNCTION steer_row() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM public.steer(); RETURN NEW; END $$;
    CREATE VIEW steers AS SELECT steer() AS what";

/// Tables whose rows steer, in one schema.
pub fn tables(schema: &str, scope: &str) -> String {
    let comments = ["steered", "ruled", "triggered", "deferred"]
        .map(|table| format!("COMMENT ON TABLE {schema}.{table} IS '{scope}';"));
    format!(
        "CREATE TABLE {schema}.steered (what text, by text DEFAULT public.steer());
         CREATE TABLE {schema}.ruled (what text);
         CREATE RULE steers AS ON INSERT TO {schema}.ruled DO ALSO SELECT public.steer();
         CREATE TABLE {schema}.triggered (what text);
         CREATE TRIGGER steers BEFORE INSERT ON {schema}.triggered
             FOR EACH ROW EXECUTE FUNCTION public.steer_row();
         CREATE TABLE {schema}.deferred (what text);
         CREATE CONSTRAINT TRIGGER steers AFTER INSERT ON {schema}.deferred DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION public.steer_row();
         {}",
        comments.concat()
    )
}

/// Two aims of a conversation, so that related statements meet.
pub fn aims(random: &mut StdRng, session: Session) -> [Aim; 2] {
    let mut aim = || match session {
        Session::Neighbour | Session::Free | Session::Reader => meaning(random),
        session if session.is_strict() => {
            if once_in(random, 6) {
                meaning(random)
            } else {
                one(random, &ACCESS)
            }
        }
        session => {
            if once_in(random, 4) {
                meaning(random)
            } else if session.has_twin() {
                one(random, &OWN)
            } else {
                one(random, &OWN[..3])
            }
        }
    };
    [aim(), aim()]
}

fn meaning(random: &mut StdRng) -> Aim {
    if once_in(random, 3) {
        one(random, &MEANING)
    } else {
        ("search_path", one(random, &SCHEMAS))
    }
}

impl Words {
    /// Possibly only when the data of its COPY arrives.
    pub fn steering(&self, random: &mut StdRng) -> Sql {
        let own = match self.session {
            Session::Neighbour | Session::Reader => Some("b"),
            Session::Free | Session::Faithful | Session::Ruler | Session::Late => Some("public"),
            _ => None,
        };
        match own {
            Some(schema) if once_in(random, 3) => pick(random, WRITTEN).replace("$s", schema),
            _ => self.aimed(random, &UNWRITTEN),
        }
        .into()
    }

    pub fn steering_query(&self, random: &mut StdRng) -> Sql {
        self.aimed(random, &QUERIES).into()
    }

    fn aimed(&self, random: &mut StdRng, forms: &[&str]) -> String {
        let (name, value) = self.aims[random.random_range(0..self.aims.len())];
        one(random, forms).replace("$n", name).replace("$v", value)
    }
}

pub fn data_of(sql: &[u8]) -> Vec<Message> {
    if sql.starts_with(b"COPY ") && sql.ends_with(b"FROM STDIN") {
        vec![Message::CopyData("x\n".into()), Message::CopyDone]
    } else {
        Vec::new()
    }
}
