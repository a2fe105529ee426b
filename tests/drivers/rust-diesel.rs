//! diesel with r2d2, on libpq.

use std::io::Write;

use diesel::connection::SimpleConnection as _;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary, Double};
use diesel::{Connection as _, IntoSql as _, prelude::*};
use suite::{Cell, Connection, after_takeover, env, follow, leader, refused, takeover};

diesel::table! {
    jobs (scenario) {
        scenario -> Text,
        what -> Text,
    }
}

fn text(options: &str) -> String {
    let port = env("PGPORT");
    format!("host=127.0.0.1 port={port} user=app password=pencil dbname=app {options}")
}

fn insert(c: &mut PgConnection, scenario: &str, what: &str) -> Result<(), Error> {
    let row = (jobs::scenario.eq(scenario), jobs::what.eq(what));
    diesel::insert_into(jobs::table).values(row).execute(c)?;
    Ok(())
}

struct Diesel(PgConnection);

impl Connection for Diesel {
    type Error = Error;

    fn open(token: Option<&str>) -> Result<Self, Error> {
        let options = token.map(|token| format!("options='-c fencing.token={token}'"));
        establish(&options.unwrap_or_default())
    }

    fn run(&mut self, sql: &str) -> Result<(), Error> {
        self.0.batch_execute(sql)
    }

    /// Diesel has no SQLSTATE.
    fn told(error: &Error) -> Option<[&str; 3]> {
        let Error::DatabaseError(_, told) = error else {
            return None;
        };
        let [detail, hint] = [told.details(), told.hint()].map(Option::unwrap_or_default);
        Some(["", detail, hint])
    }
}

fn establish(options: &str) -> Result<Diesel, Error> {
    let connected = PgConnection::establish(&text(options));
    connected.map(Diesel).map_err(other)
}

/// As one type with the errors of statements.
fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::QueryBuilderError(Box::new(error))
}

fn batch() -> Cell {
    let mut c = leader::<Diesel>()?;
    takeover("asleep");
    refused::<Diesel>(c.run(&suite::batch()))
}

fn copy() -> Cell {
    let mut c = leader::<Diesel>()?.0;
    let rows = |copy: &mut dyn Write| {
        copy.write_all(b"copy\tlost\n").map_err(other)?;
        takeover("");
        copy.write_all(b"copy\tlost\n").map_err(other)
    };
    let copy = diesel::copy_from(jobs::table).from_raw_data(jobs::table, rows);
    refused::<Diesel>(copy.execute(&mut c).map(drop))
}

fn pool() -> Cell {
    let pool = Pool::builder().max_size(2);
    let pool = pool.build(ConnectionManager::<PgConnection>::new(text("")))?;
    after_takeover::<Diesel>(|token, what| {
        pool.get().map_err(other)?.transaction(|c| {
            c.batch_execute(&format!("SET LOCAL fencing.token = {token}"))?;
            insert(c, "pool", what)
        })
    })
}

fn notify() -> Cell {
    let mut c = leader::<Diesel>()?;
    c.run("LISTEN jobs")?;
    c.run("NOTIFY jobs, 'done'")?;
    let heard = c.0.notifications_iter().next().unwrap()?;
    assert_eq!(heard.payload, "done");
    Ok("ok")
}

/// The only format of the driver.
fn binary() -> Cell {
    let mut c = leader::<Diesel>()?.0;
    let (number, part, bytes) = (1i64 << 40, 0.25, vec![0u8, 255]);
    let select = diesel::select((
        number.into_sql::<BigInt>(),
        part.into_sql::<Double>(),
        bytes.clone().into_sql::<Binary>(),
    ));
    let row: (i64, f64, Vec<u8>) = select.get_result(&mut c)?;
    assert_eq!(row, (number, part, bytes));
    Ok("ok")
}

fn main() {
    suite::run::<Diesel>(
        "diesel 2.3",
        &[
            ("batch", batch),
            ("copy", copy),
            ("pool", pool),
            ("prepared", || {
                suite::prepared::<Diesel>(|c, what| insert(&mut c.0, "prepared", what))
            }),
            ("notify", notify),
            ("binary", binary),
            ("attrs", || {
                follow(establish("target_session_attrs=read-write")?)
            }),
        ],
        "autocommit cancel objects cursor",
    );
}
