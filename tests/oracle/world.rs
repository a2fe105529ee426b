//! The database for the cases, and the execution of one case.

use std::collections::HashMap;

use pgpalisade_policies::{Class, Control, TextEncoding, WriteReason, classify};
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, Wire, trusted};

use super::corpus::WORLD;

const SAFE: TextEncoding = TextEncoding::Utf8;

/// A line for every table, sequence and system catalog with a checksum of its rows. It also covers state outside of
/// the catalogs: replication slots, prepared transactions, settings in files.
const FINGERPRINT: &str = "
    CREATE FUNCTION fingerprint() RETURNS SETOF text LANGUAGE plpgsql AS $$
    DECLARE
        rows record;
        sum text;
    BEGIN
        FOR rows IN
            SELECT c.oid::regclass::text AS name FROM pg_class c
            WHERE relkind IN ('r', 'm', 'S') AND relnamespace <> 'information_schema'::regnamespace
            UNION ALL SELECT 'pg_prepared_xacts'
            UNION ALL SELECT '(SELECT slot_name, slot_type FROM pg_replication_slots) slots'
            UNION ALL SELECT '(SELECT name, setting FROM pg_file_settings) files'
            ORDER BY 1
        LOOP
            EXECUTE format(
                'SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM (SELECT * FROM %s) AS t', rows.name
            ) INTO sum;
            RETURN NEXT rows.name || ' ' || coalesce(sum, 'empty');
        END LOOP;
    END $$";

pub(crate) fn stage() -> Stage {
    let postgres = Postgres::start_with(Auth::Trust, &["autovacuum=off"]);
    postgres.sql(WORLD);
    postgres.sql(FINGERPRINT);
    let proxy = Proxy::start(&postgres);
    Stage { proxy, postgres }
}

/// Observes the database from outside.
#[derive(Debug)]
pub(crate) struct Watch {
    admin: Wire,
}

impl Watch {
    pub(crate) fn new(stage: &Stage) -> Self {
        Self {
            admin: stage.postgres.admin(),
        }
    }

    pub(crate) fn fingerprint(&mut self) -> Vec<String> {
        self.admin.rows("SELECT fingerprint()").concat()
    }

    /// Next transaction id. The first row, catalog entry, large object or notification of any transaction advances
    /// it, even if the transaction is rolled back.
    pub(crate) fn next_xid(&mut self) -> String {
        self.admin
            .rows("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            .concat()
            .concat()
    }
}

pub(crate) fn changed(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line));
    let new = after.iter().filter(|line| !before.contains(line));
    gone.map(|line| format!("- {line}"))
        .chain(new.map(|line| format!("+ {line}")))
        .collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
}

impl Outcome {
    fn of(answer: &[Message]) -> Self {
        let error = answer.iter().find(|message| message.tag == b'E');
        match error {
            Some(error) => Self::Failed(error.sqlstate()),
            None if answer.last().is_some_and(Message::is_closed) => Self::Failed("closed".into()),
            None => Self::Passed,
        }
    }

    pub(crate) fn is(&self, sqlstate: &str) -> bool {
        matches!(self, Self::Failed(state) if state == sqlstate)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Simple,
    Extended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    Block,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Runner {
    wire: Wire,
    endpoint: Endpoint,
    more: &'static [(&'static str, &'static str)],
}

impl Runner {
    /// Directly on the server, read-only: the oracle.
    pub(crate) fn oracle(stage: &Stage) -> Self {
        Self::new(
            stage.postgres.tcp(),
            &[("default_transaction_read_only", "on")],
        )
    }

    pub(crate) fn without_token(stage: &Stage) -> Self {
        Self::new(stage.proxy.endpoint(), &[])
    }

    /// Directly on the server, free to write.
    pub(crate) fn free(stage: &Stage) -> Self {
        Self::new(stage.postgres.tcp(), &[])
    }

    fn new(endpoint: Endpoint, more: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            wire: Wire::login(&endpoint, &trusted(more)),
            endpoint,
            more,
        }
    }

    /// Runs the texts one after the other up to the first error, and undoes what it can.
    pub(crate) fn run(&mut self, script: &[String], around: Around, by: Protocol) -> Outcome {
        if around == Around::Block {
            self.wire.ok("BEGIN");
        }
        let mut outcome = Outcome::Passed;
        for text in script {
            let answer = match by {
                Protocol::Simple => self.wire.query(text),
                Protocol::Extended => self.wire.extended(text),
            };
            outcome = Outcome::of(&answer);
            if outcome != Outcome::Passed {
                break;
            }
        }
        let answer = self.wire.run(&Batch::new().query("ROLLBACK"));
        if answer.last().is_some_and(Message::is_closed) {
            self.wire = Wire::login(&self.endpoint, &trusted(self.more));
        } else {
            self.wire.ok("DISCARD ALL");
        }
        outcome
    }
}

/// Follows PREPARE and EXECUTE as the proxy does.
pub(crate) fn class_of(script: &[String]) -> Class {
    let mut prepared = HashMap::new();
    let mut class = Class::Read;
    for text in script {
        let verdict = classify(text.as_bytes(), SAFE);
        for statement in &verdict.statements {
            class = class.max(statement.effects.class);
            for control in &statement.controls {
                match control {
                    Control::Prepare { name, effects } => {
                        prepared.insert(name.clone(), effects.class);
                    }
                    Control::Execute { name } => {
                        class = class.max(prepared.get(name).copied().unwrap_or(Class::Write));
                    }
                    _ => {}
                }
            }
        }
    }
    class
}

pub(crate) fn why(text: &str) -> String {
    let verdict = classify(text.as_bytes(), SAFE);
    verdict
        .why()
        .map_or_else(|| "it is a read".to_owned(), WriteReason::to_string)
}
