//! SQL of conversations.

use clap::ValueEnum;
use rand::Rng;
use rand::rngs::StdRng;

use super::conversation::{Name, Session, Sql};
use super::moves::token_values;
use super::steering::Aim;

/// Purpose of a statement. Each conversation weights the kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Read,
    /// Openly changes something that read-only mode does not protect.
    Piercing,
    Write,
    /// The text does not show the write.
    Hidden,
    /// Switches read-only mode off, openly or hidden.
    Lift,
    Encoding,
    /// Ends a string early in another encoding.
    Smuggled,
    Strings,
    Block,
    Prepared,
    Cursor,
    Error,
    Token,
    Copy,
    Reset,
    Setting,
}

/// Some allow a second byte in ASCII's range, some do not.
pub const ENCODINGS: [&str; 12] = [
    "SJIS",
    "BIG5",
    "GBK",
    "UHC",
    "GB18030",
    "JOHAB",
    "SHIFT_JIS_2004",
    "LATIN1",
    "EUC_JP",
    "EUC_KR",
    "EUC_CN",
    "UTF8",
];

/// Bytes that in this encoding swallow a following backslash as half of a character; alone they are valid UTF-8.
pub const SWALLOWING: [(&str, &[u8]); 5] = [
    ("SJIS", b"\xc2\x83"),
    ("SHIFT_JIS_2004", b"\xc2\x83"),
    ("BIG5", b"\xe1\xa1\xa1"),
    ("GBK", b"\xe1\x80\x81"),
    ("GB18030", b"\xe1\x80\x81"),
];

const READS: &str = "SELECT 1 | SELECT count(*) FROM log | TABLE b.jobs | VALUES (1), (2) | \
    SHOW client_encoding | SHOW transaction_read_only | \
    SELECT current_setting('default_transaction_read_only') | SELECT * FROM generate_series(1, 5) | \
    EXPLAIN SELECT 1 | SELECT 'C:\\dir\\' | SELECT '\\x27'::bytea | SELECT E'it\\'s' | \
    SELECT $$a ; b$$ | ";

const PIERCING_CALLS: [&str; 5] = [
    "SELECT pg_notify('news', 'x')",
    "SELECT lo_create(0)",
    "SELECT pg_logical_emit_message(false, 'a', 'b')",
    "SELECT pg_logical_emit_message(true, 'a', 'b')",
    "SELECT txid_current()",
];

const WRITES: [&str; 16] = [
    "INSERT INTO log VALUES ('x')",
    "INSERT INTO log VALUES ('x') RETURNING what",
    "UPDATE log SET what = 'x'",
    "DELETE FROM log",
    "WITH x AS (INSERT INTO log VALUES ('x') RETURNING 1) SELECT * FROM x",
    "EXPLAIN (ANALYZE, BUFFERS FALSE) INSERT INTO log VALUES ('x')",
    "SELECT nextval('counter')",
    "SELECT setval('counter', 7)",
    "SELECT * FROM log FOR UPDATE",
    "CREATE TABLE made (n int)",
    "CREATE TEMP TABLE made (n int)",
    "SELECT 1 AS n INTO made",
    "TRUNCATE log",
    "DO 'BEGIN INSERT INTO log VALUES (''x''); END'",
    "LOCK TABLE log",
    "PREPARE TRANSACTION 'made'",
];

/// Writes that the token of scope `b` does not allow.
const FOREIGN_WRITES: [&str; 9] = [
    "INSERT INTO jobs VALUES ('x')",
    "INSERT INTO a.jobs VALUES ('x')",
    "INSERT INTO a.jobs VALUES ('x') RETURNING what",
    "UPDATE a.jobs SET what = 'x'",
    "WITH x AS (INSERT INTO a.jobs VALUES ('x') RETURNING 1) SELECT * FROM x",
    "EXPLAIN (ANALYZE, BUFFERS FALSE) INSERT INTO a.jobs VALUES ('x')",
    "INSERT INTO log VALUES ('x')",
    "SELECT nextval('counter')",
    "SELECT pg_notify('news', 'x')",
];

const HIDDEN: &str = "SELECT w() | TABLE v | SELECT !!! 1 | SELECT 'x'::d | SELECT '{x}'::d[] | \
    SELECT * FROM generate_series(1, stable_w()) | SELECT runs('INSERT INTO log VALUES (''x'')') | \
    SELECT runs('SELECT nextval(''counter'')')";

const LIFTS: &str = "SELECT sets('default_transaction_read_only', 'off') | \
    SELECT sets('default_transaction_read_only', 'off') | \
    SELECT sets_local('default_transaction_read_only', 'off') | \
    SELECT sets_local('transaction_read_only', 'off') | \
    SELECT runs('SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE') | \
    SET default_transaction_read_only = off | \
    SELECT set_config('default_transaction_read_only', 'off', false) | \
    SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE | SET TRANSACTION READ WRITE | \
    BEGIN READ WRITE | RESET default_transaction_read_only | \
    SELECT sets('transaction_read_only', 'off') | SET default_transaction_read_only = on | \
    SELECT set_config('default_transaction_read_only', 'on', false)";

const BLOCKS: &str = "BEGIN | BEGIN | START TRANSACTION READ ONLY | \
    BEGIN ISOLATION LEVEL SERIALIZABLE | COMMIT | COMMIT | END | ROLLBACK | ABORT | \
    COMMIT AND CHAIN | ROLLBACK AND CHAIN | SAVEPOINT s | SAVEPOINT s | ROLLBACK TO s | \
    ROLLBACK TO s | RELEASE s | SET TRANSACTION READ ONLY | \
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

const ERRORS: &str = "SELECT 1/0 | SELEC 1 | SELECT * FROM nowhere | SELECT 'x'::int | \
    SELECT runs('SELEC') | ROLLBACK TO nowhere";

const RESETS: &str = "RESET ALL | DISCARD ALL | DISCARD PLANS | DISCARD TEMP | DISCARD SEQUENCES | \
    DEALLOCATE ALL | CLOSE ALL | UNLISTEN * | RESET client_encoding | \
    RESET standard_conforming_strings | RESET fencing.token | RESET SESSION AUTHORIZATION";

const SETTINGS: &str = "SET search_path = a, public | SET search_path = b | SELECT sets('search_path', 'a') | \
    SELECT sets('search_path', 'b, a') | SET ROLE app | RESET ROLE | SELECT sets('role', 'app') | \
    SET work_mem = '4MB' | LISTEN news | SELECT set_config('search_path', 'a', false)";

pub fn one<T: Copy>(random: &mut StdRng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

/// One of the texts between ` | `.
pub fn pick(random: &mut StdRng, of: &'static str) -> &'static str {
    let texts: Vec<_> = of.split(" | ").collect();
    one(random, &texts)
}

/// True once in `times` times.
pub fn once_in(random: &mut StdRng, times: u32) -> bool {
    random.random_range(0..times) == 0
}

/// Common parts of a conversation's statements, so that they meet.
#[derive(Clone, Debug)]
pub struct Words {
    pub session: Session,
    pub names: Vec<Name>,
    pub encodings: [&'static str; 2],
    /// Settings that it changes without the text showing it.
    pub aims: [Aim; 2],
    pub tables: Vec<String>,
}

impl Words {
    pub fn statement(&self, random: &mut StdRng, kind: Kind) -> Sql {
        match kind {
            Kind::Read => pick(random, READS).into(),
            Kind::Piercing => self.piercing(random),
            Kind::Write => self.write(random),
            // The token of scope `b` covers hidden writes; docs/guarantee.md says so.
            Kind::Hidden if self.session.is_neighbour() => self.piercing(random),
            Kind::Hidden => pick(random, HIDDEN).into(),
            Kind::Lift => pick(random, LIFTS).into(),
            Kind::Encoding => self.encoding(random),
            Kind::Smuggled => self.smuggled(random),
            Kind::Strings => self.strings(random),
            Kind::Block => pick(random, BLOCKS).into(),
            Kind::Prepared => self.prepared(random),
            Kind::Cursor => self.cursor(random),
            Kind::Error => pick(random, ERRORS).into(),
            Kind::Token => self.token(random),
            Kind::Copy => self.copy(random),
            Kind::Reset => pick(random, RESETS).into(),
            Kind::Setting => pick(random, SETTINGS).into(),
        }
    }

    /// A statement that writes if it is taken for a read.
    pub fn piercing(&self, random: &mut StdRng) -> Sql {
        match random.random_range(0..4) {
            0 if self.session != Session::Free => "NOTIFY news, 'x'".into(),
            _ => self.piercing_query(random),
        }
    }

    /// As [`Self::piercing`], as a query with rows: it can be prepared, declared and fetched from.
    pub fn piercing_query(&self, random: &mut StdRng) -> Sql {
        match self.session {
            Session::Neighbour => one(random, &FOREIGN_WRITES).into(),
            Session::Free | Session::Reader => one(random, &FOREIGN_WRITES[..6]).into(),
            session if session.has_twin() => PIERCING_CALLS[0].into(),
            _ => one(random, &PIERCING_CALLS).into(),
        }
    }

    /// An allowed one if the session may write.
    pub fn write(&self, random: &mut StdRng) -> Sql {
        match self.session {
            Session::Neighbour if once_in(random, 3) => "INSERT INTO b.jobs VALUES ('x')".into(),
            Session::Neighbour | Session::Free | Session::Reader => {
                one(random, &FOREIGN_WRITES).into()
            }
            Session::Holder => one(random, &WRITES[..6]).into(),
            session if session.has_twin() => one(random, &WRITES[..6]).into(),
            _ => one(random, &WRITES).into(),
        }
    }

    /// A read, a hidden write, or a write by name.
    pub fn query(&self, random: &mut StdRng) -> Sql {
        let kind = one(random, &[Kind::Read, Kind::Hidden, Kind::Piercing]);
        match kind {
            Kind::Read => pick(random, "SELECT 1 | SELECT what FROM log | VALUES (1), (2)").into(),
            Kind::Hidden => self.statement(random, Kind::Hidden),
            _ => self.piercing_query(random),
        }
    }

    pub fn encoding(&self, random: &mut StdRng) -> Sql {
        let encoding = one(random, &self.encodings);
        let form = pick(
            random,
            "SET client_encoding = '$' | SET LOCAL client_encoding = '$' | SET NAMES '$' | \
                SELECT set_config('client_encoding', '$', false) | \
                SELECT set_config('client_encoding', '$', true) | \
                SELECT sets('client_encoding', '$') | SELECT sets_local('client_encoding', '$') | \
                SELECT runs('SET client_encoding = $') | RESET client_encoding",
        );
        form.replace('$', encoding).into()
    }

    /// A string that ends early under another lexer, followed by `payload` with its quotes replaced.
    pub fn smuggled_with(&self, random: &mut StdRng, payload: &[u8]) -> Sql {
        let own = SWALLOWING
            .iter()
            .find(|(name, _)| self.encodings.contains(name));
        let lead: &[u8] = match (random.random_range(0..8), own) {
            (0, _) => b"",
            (1, _) => b"\x83",
            (2..=5, Some((_, lead))) => lead,
            _ => one(random, &SWALLOWING).1,
        };
        let (open, end): (&[u8], &[u8]) = match random.random_range(0..6) {
            0 => (b"SELECT '", b"\\'; "),
            1 => (b"SELECT '", b"', '; "),
            2 => (b"SELECT '\x81_", b"', '; "),
            _ => (b"SELECT E'", b"\\'; "),
        };
        let payload: Vec<Sql> = payload
            .split(|&byte| byte == b'\'')
            .map(<[u8]>::to_vec)
            .collect();
        [open, lead, end, &payload.join(&b"$$"[..]), b" --'"].concat()
    }

    fn smuggled(&self, random: &mut StdRng) -> Sql {
        let kind = one(
            random,
            &[Kind::Piercing, Kind::Piercing, Kind::Lift, Kind::Write],
        );
        let payload = self.statement(random, kind);
        self.smuggled_with(random, &payload)
    }

    fn strings(&self, random: &mut StdRng) -> Sql {
        let value = one(random, &["on", "off"]);
        let form = pick(
            random,
            "SET standard_conforming_strings = $ | SET LOCAL standard_conforming_strings = $ | \
                SELECT set_config('standard_conforming_strings', '$', false) | \
                SELECT sets('standard_conforming_strings', '$') | \
                SELECT sets_local('standard_conforming_strings', '$')",
        );
        form.replace('$', value).into()
    }

    pub fn name(&self, random: &mut StdRng) -> Name {
        self.names[random.random_range(0..self.names.len())].clone()
    }

    pub fn quoted(&self, random: &mut StdRng) -> Sql {
        let name = self.names[random.random_range(0..self.names.len())].as_slice();
        let name = if name.is_empty() { b"s" } else { name };
        [b"\"", name, b"\""].concat()
    }

    fn prepared(&self, random: &mut StdRng) -> Sql {
        let name = self.quoted(random);
        let query = self.query(random);
        match random.random_range(0..8) {
            0..=1 => [b"PREPARE ", &name[..], b" AS ", &query].concat(),
            2..=4 => [b"EXECUTE ", &name[..]].concat(),
            5 => [b"DEALLOCATE ", &name[..]].concat(),
            6 => in_function(&[b"DEALLOCATE ", &name[..]].concat()),
            _ => in_function(&[b"PREPARE ", &name[..], b" AS ", &query].concat()),
        }
    }

    fn cursor(&self, random: &mut StdRng) -> Sql {
        let name = self.quoted(random);
        let query = self.query(random);
        let declare: &[u8] = if once_in(random, 3) {
            b" CURSOR WITH HOLD FOR "
        } else {
            b" CURSOR FOR "
        };
        match random.random_range(0..8) {
            0..=2 => [b"DECLARE ", &name[..], declare, &query].concat(),
            3..=4 => [b"FETCH ", &name[..]].concat(),
            5 => [b"FETCH ALL FROM ", &name[..]].concat(),
            6 => [b"MOVE ", &name[..]].concat(),
            _ => [b"CLOSE ", &name[..]].concat(),
        }
    }

    pub fn token(&self, random: &mut StdRng) -> Sql {
        let value = one(random, token_values(self.session));
        let form = pick(
            random,
            "SET fencing.token = '$' | SET fencing.token = '$' | SET LOCAL fencing.token = '$' | \
                SELECT set_config('fencing.token', '$', false) | \
                SELECT set_config('fencing.token', '$', true) | RESET fencing.token | \
                SET fencing.token TO DEFAULT",
        );
        form.replace('$', value).into()
    }

    fn copy(&self, random: &mut StdRng) -> Sql {
        let query = self.query(random);
        match random.random_range(0..5) {
            0 => "COPY log (what) FROM STDIN".into(),
            1 => "COPY a.jobs (what) FROM STDIN".into(),
            2 => "COPY log TO STDOUT".into(),
            _ => [b"COPY (", &query[..], b") TO STDOUT"].concat(),
        }
    }
}

/// The statement inside a function of the database.
pub fn in_function(sql: &[u8]) -> Sql {
    let quoted: Vec<u8> = sql
        .iter()
        .flat_map(|&byte| {
            if byte == b'\'' {
                vec![byte; 2]
            } else {
                vec![byte]
            }
        })
        .collect();
    [b"SELECT runs('", &quoted[..], b"')"].concat()
}
