//! What a refusal costs the session's thread: the error, the text without literals, and a place in the queue.

use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use pgpalisade::config::Literals;
use pgpalisade::rejection::{Needs, Rejection};
use pgpalisade::rejection_log::{Enforcement, RejectionLog, SessionLabel};
use pgpalisade_authority::Scope;
use pgpalisade_policies::Class;

use super::{Case, INSERT, Made};

/// A record that waits has a place in a queue of 4,096: so many at once, and then a pause for the writer.
const RECORDS: u64 = 1_000;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new(
        "refuse-record",
        "refuse an INSERT of 100 bytes and hand the record to the writer",
        record,
    )]
}

fn record() -> Made {
    let scope = Scope::from_str("default")?;
    let log = RejectionLog::open(None, Literals::Remove)?;
    let label = SessionLabel {
        user: "app".to_owned(),
        database: "shop".to_owned(),
        application_name: Some("worker".to_owned()),
        client_addr: "10.0.0.1:5000".parse()?,
        backend_pid: Some(77),
    };
    let one = move || {
        let needs = Needs {
            class: Class::Write,
            scopes: &[&scope],
            session_scope: &scope,
            why_write: None,
        };
        let rejection = Rejection::no_token(black_box(&scope), &needs);
        let text = log.statement(black_box(INSERT.as_bytes()));
        log.record(rejection.record(&label, Some("INSERT"), Some(text), Enforcement::Refused));
    };
    Ok(Box::new(move |calls| {
        let mut took = Duration::ZERO;
        for burst in 0..calls.div_ceil(RECORDS) {
            let start = Instant::now();
            for _ in 0..RECORDS.min(calls - burst * RECORDS) {
                one();
            }
            took += start.elapsed();
            std::thread::sleep(Duration::from_millis(2));
        }
        took
    }))
}
