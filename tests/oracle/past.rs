//! Changes that PostgreSQL allows in a read-only session, so each must be a write by name.

use pgpalisade_policies::Class;

use super::corpus::{self, cases};
use super::world::{Around, Outcome, Protocol, Runner, Watch, changed, class_of, stage};

/// Objects for the cases: a slot, an origin, and prepared transactions to end.
const KEPT: [&str; 4] = [
    "CREATE PROCEDURE does_nothing() LANGUAGE sql AS ''",
    "SELECT pg_create_physical_replication_slot('kept'), pg_replication_origin_create('kept')",
    "BEGIN; INSERT INTO log DEFAULT VALUES; PREPARE TRANSACTION 'kept'",
    "BEGIN; INSERT INTO log DEFAULT VALUES; PREPARE TRANSACTION 'kept too'",
];

#[test]
fn it_is_a_write_by_name() {
    let stage = stage();
    for sql in KEPT {
        stage.sql(sql);
    }
    let mut watch = Watch::new(&stage);
    let before = watch.fingerprint();
    let mut plain = Runner::without_token(&stage);
    let mut wrong = Vec::new();
    let all = cases(corpus::PAST);
    let around = |tag: Option<&str>| match tag {
        Some("alone") => Around::Nothing,
        _ => Around::Block,
    };
    for case in &all {
        if class_of(&case.script) == Class::Read {
            wrong.push(format!("called a read: {}", case.text()));
        }
        for by in [Protocol::Simple, Protocol::Extended] {
            let xid = watch.next_xid();
            let outcome = plain.run(&case.script, around(case.tag.as_deref()), by);
            // Refused by default, with any token.
            let refused = if case
                .script
                .iter()
                .any(|sql| sql.starts_with("PREPARE TRANSACTION"))
            {
                "PF005"
            } else {
                "PF002"
            };
            if !outcome.is(refused) {
                wrong.push(format!("{by:?} {outcome:?}: {}", case.text()));
            }
            if watch.next_xid() != xid {
                wrong.push(format!("{by:?} it wrote: {}", case.text()));
            }
        }
    }
    let changes = changed(&before, &watch.fingerprint());
    assert!(changes.is_empty(), "{}", changes.join("\n"));
    // Validates the list: PostgreSQL itself lets them pass.
    let mut oracle = Runner::oracle(&stage);
    for case in &all {
        let outcome = oracle.run(&case.script, around(case.tag.as_deref()), Protocol::Simple);
        let as_listed = outcome == Outcome::Passed
            || case.tag.as_deref() == Some("also 25006") && outcome.is("25006");
        if !as_listed {
            wrong.push(format!("PostgreSQL: {outcome:?}: {}", case.text()));
        }
    }
    stage.sql("SELECT 1 FROM pg_prepared_xacts");
    println!("{} statements that pass a READ ONLY transaction", all.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
