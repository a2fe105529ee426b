//! Shapes of a leader's writes.

use clap::ValueEnum;
use pgpalisade_test_servers::wire::Batch;

use super::history::Row;

/// Objects that leaders write to. `put` commits halfway and takes its time, `put_row` writes hidden from any parser.
/// Behind a listener a row gets the token of its session, whatever the program believes.
pub const SETUP: &str = "
    CREATE TABLE writes (id bigint PRIMARY KEY, scope text NOT NULL, token bigint NOT NULL);
    CREATE INDEX ON writes (scope, token, id);
    CREATE PROCEDURE put(ids bigint[], s text, t bigint) LANGUAGE plpgsql AS $$
        BEGIN FOR i IN 1 .. array_length(ids, 1) LOOP
            INSERT INTO writes VALUES (ids[i], s, t); COMMIT; PERFORM pg_sleep(0.02);
        END LOOP; END $$;
    CREATE FUNCTION put_row(id bigint, s text, t bigint) RETURNS bigint LANGUAGE sql AS $$
        INSERT INTO writes VALUES (id, s, t) RETURNING id $$;
    CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.token := coalesce(nullif(regexp_replace(current_setting('fencing.token', true), '.*=', ''), ''), '0');
        RETURN NEW;
    END $$;
    CREATE TRIGGER stamp BEFORE INSERT ON writes FOR EACH ROW WHEN (NEW.scope = 'led') EXECUTE FUNCTION stamp()";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    Autocommit,
    Extended,
    Transaction,
    /// In a transaction that COMMIT AND CHAIN has begun.
    CommitAndChain,
    /// In one string.
    OneString,
    Pipeline,
    /// A named statement, bound and executed for each row.
    Prepared,
    Copy,
    /// Commits after each row.
    Procedure,
    /// A function that writes, in a SELECT.
    Function,
    /// A SELECT over INSERT ... RETURNING.
    Hidden,
    /// The session clears its token and declares it again before an INSERT.
    DeclaredAgain,
    /// The session clears its token and declares it for one transaction only: it holds none afterwards.
    LocalToken,
}

impl Shape {
    /// Those without a declaration of their own.
    pub fn undeclared() -> &'static [Self] {
        &Self::value_variants()[..11]
    }

    /// Those that can stand in a transaction block.
    fn is_in_a_block(self) -> bool {
        !matches!(
            self,
            Self::Transaction
                | Self::CommitAndChain
                | Self::OneString
                | Self::Procedure
                | Self::DeclaredAgain
                | Self::LocalToken
        )
    }

    /// The steps, in a transaction that declares the token for itself.
    pub fn steps_in_a_block(self, rows: &[Row]) -> Vec<Batch> {
        let one = if self.is_in_a_block() {
            self
        } else {
            Self::Autocommit
        };
        let mut steps = texts(&["BEGIN", &declare("SET LOCAL", rows)]);
        steps.extend(one.steps(rows));
        steps.extend(texts(&["COMMIT"]));
        steps
    }

    pub fn rows_max(self) -> usize {
        match self {
            Self::Autocommit | Self::Extended | Self::Function => 1,
            _ => 4,
        }
    }

    /// Each step is answered with one ReadyForQuery before the next is sent.
    pub fn steps(self, rows: &[Row]) -> Vec<Batch> {
        let one = |sql: String| vec![Batch::new().query(&sql)];
        match self {
            Self::Autocommit => one(insert(rows)),
            Self::Extended => vec![Batch::new().statement(&insert(rows)).sync()],
            Self::Transaction => {
                let inserts = rows.iter().map(|row| insert(std::slice::from_ref(row)));
                let all = std::iter::once("BEGIN".to_owned())
                    .chain(inserts)
                    .chain(["COMMIT".to_owned()]);
                all.map(|sql| Batch::new().query(&sql)).collect()
            }
            Self::CommitAndChain => texts(&["BEGIN", "COMMIT AND CHAIN", &insert(rows), "COMMIT"]),
            Self::OneString => one(format!("BEGIN; {}; COMMIT", insert(rows))),
            Self::Pipeline => {
                let all = rows.iter().fold(Batch::new(), |batch, row| {
                    batch.statement(&insert(std::slice::from_ref(row)))
                });
                vec![all.sync()]
            }
            Self::Prepared => {
                let parse = Batch::new().parse("w", "INSERT INTO writes VALUES ($1, $2, $3)");
                let all = rows.iter().fold(parse, |batch, row| {
                    let (id, token) = (row.id.to_string(), row.token.to_string());
                    let values = [Some(id.as_str()), Some(&row.scope), Some(&token)];
                    batch.bind("", "w", &values).execute("", 0)
                });
                vec![all.close_statement("w").sync()]
            }
            Self::Copy => {
                let lines: String = rows
                    .iter()
                    .map(|row| format!("{}\t{}\t{}\n", row.id, row.scope, row.token))
                    .collect();
                let copy = Batch::new().query("COPY writes FROM STDIN");
                vec![copy.copy_data(lines.as_bytes()).copy_done()]
            }
            Self::Procedure => {
                let ids: Vec<String> = rows.iter().map(|row| row.id.to_string()).collect();
                let Some(Row { scope, token, .. }) = rows.first() else {
                    return Vec::new();
                };
                one(format!(
                    "CALL put('{{{}}}', '{scope}', {token})",
                    ids.join(",")
                ))
            }
            Self::Function => {
                let calls: Vec<String> = rows
                    .iter()
                    .map(|row| format!("put_row({}, '{}', {})", row.id, row.scope, row.token))
                    .collect();
                one(format!("SELECT {}", calls.join(", ")))
            }
            Self::Hidden => one(format!(
                "WITH new AS ({} RETURNING id) SELECT count(*) FROM new",
                insert(rows)
            )),
            Self::DeclaredAgain => texts(&[LAY_DOWN, &declare("SET", rows), &insert(rows)]),
            Self::LocalToken => texts(&[
                LAY_DOWN,
                "BEGIN",
                &declare("SET LOCAL", rows),
                &insert(rows),
                "COMMIT",
            ]),
        }
    }
}

const LAY_DOWN: &str = "SET fencing.token = ''";

fn texts(texts: &[&str]) -> Vec<Batch> {
    let query = |sql: &&str| Batch::new().query(sql);
    texts.iter().map(query).collect()
}

/// As in [`declaration`](super::declaration): all leaders share a token of scope `default`.
fn declare(set: &str, rows: &[Row]) -> String {
    let of_scope = rows
        .first()
        .map(|row| format!(",{}={}", row.scope, row.token));
    let of_scope = of_scope.unwrap_or_default();
    format!("{set} fencing.token = 'default=1{of_scope}'")
}

fn insert(rows: &[Row]) -> String {
    let values: Vec<String> = rows
        .iter()
        .map(|row| format!("({}, '{}', {})", row.id, row.scope, row.token))
        .collect();
    format!("INSERT INTO writes VALUES {}", values.join(", "))
}
