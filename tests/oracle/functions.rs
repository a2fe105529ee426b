//! Every volatile function of the server and its extensions is a write by name, or was reviewed: it changes nothing,
//! or only what read-only mode protects. A new function fails this test.

use std::collections::{BTreeMap, BTreeSet};

use pgpalisade_policies::Class;
use pgpalisade_test_servers::postgres::Postgres;

use super::world::class_of;

/// `extension: names`, or only names for those of the server.
const HARMLESS: &str = include_str!("corpus/harmless_functions.txt");

fn harmless() -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in HARMLESS.lines().filter(|line| !line.starts_with('#')) {
        let (owner, names) = line.split_once(": ").unwrap_or(("", line));
        let names = names.split_whitespace().map(str::to_owned);
        all.entry(owner.to_owned()).or_default().extend(names);
    }
    all
}

fn is_write(function: &str) -> bool {
    class_of(&[format!("SELECT \"{function}\"()")]) == Class::Write
}

/// Adds a line to `what` for each function that is neither a write nor reviewed, or wrongly both.
fn compare(owner: &str, volatile: &[String], reviewed: &BTreeSet<String>, what: &mut Vec<String>) {
    for function in volatile {
        match (is_write(function), reviewed.contains(function)) {
            (false, false) => what.push(format!("{owner} {function}: nobody has looked at it")),
            (true, true) => what.push(format!(
                "{owner} {function}: a write, and on the list of harmless ones"
            )),
            _ => {}
        }
    }
}

#[test]
fn every_volatile_function_was_looked_at() {
    let postgres = Postgres::start();
    let volatile = postgres
        .sql(
            "SELECT DISTINCT proname FROM pg_proc
             WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile = 'v' ORDER BY 1",
        )
        .concat();
    assert!(volatile.len() > 200, "only {} functions", volatile.len());
    let mut wrong = Vec::new();
    compare("pg_catalog", &volatile, &harmless()[""], &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The extensions shipped with PostgreSQL, as far as they are installed here.
#[test]
fn every_volatile_function_of_an_extension_was_looked_at() {
    let postgres = Postgres::start();
    let mut admin = postgres.admin();
    for name in postgres
        .sql("SELECT name FROM pg_available_extensions ORDER BY 1")
        .concat()
    {
        // Some need a missing library, or a setting of the server.
        admin.query(&format!(
            "CREATE EXTENSION IF NOT EXISTS \"{name}\" CASCADE"
        ));
    }
    let rows = postgres.sql(
        "SELECT extname, proname FROM pg_proc p
         JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
         JOIN pg_extension e ON e.oid = d.refobjid WHERE provolatile = 'v' GROUP BY 1, 2 ORDER BY 1, 2",
    );
    let reviewed = harmless();
    let none = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut extensions = BTreeSet::new();
    for row in &rows {
        let known = reviewed.get(&row[0]).unwrap_or(&none);
        extensions.insert(row[0].clone());
        compare(&row[0], &row[1..], known, &mut wrong);
    }
    println!("{} functions of {extensions:?}", rows.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
