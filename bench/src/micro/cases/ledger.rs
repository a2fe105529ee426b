//! What is in flight.

use std::hint::black_box;

use pgpalisade::session::in_flight::{InFlight, Request};
use pgpalisade::session::ledger::Ledger;
use pgpalisade::wire::backend::tag;

use super::{Case, Made, repeat};

const PIPELINE: u32 = 1_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "ledger-query",
            "a simple query and its four replies",
            || {
                let replies = [
                    tag::ROW_DESCRIPTION,
                    tag::DATA_ROW,
                    tag::COMMAND_COMPLETE,
                    tag::READY_FOR_QUERY,
                ];
                pipeline(1, &[Request::Query], &replies)
            },
        ),
        Case::new(
            "ledger-extended",
            "Parse, Bind, Describe, Execute, Sync and their six replies",
            || {
                let requests = [
                    Request::Parse,
                    Request::Bind,
                    Request::Describe,
                    Request::Execute,
                    Request::Sync,
                ];
                let replies = [
                    tag::PARSE_COMPLETE,
                    tag::BIND_COMPLETE,
                    tag::ROW_DESCRIPTION,
                    tag::DATA_ROW,
                    tag::COMMAND_COMPLETE,
                    tag::READY_FOR_QUERY,
                ];
                pipeline(1, &requests, &replies)
            },
        ),
        Case::new(
            "ledger-1000",
            "Bind, Execute and their two replies, with 1,000 of them in flight",
            || {
                let requests = [Request::Bind, Request::Execute];
                let replies = [tag::BIND_COMPLETE, tag::COMMAND_COMPLETE];
                pipeline(PIPELINE, &requests, &replies)
            },
        )
        .times(PIPELINE),
    ]
}

/// Sends all of them so often, and then takes the replies. The ledger is that of a session that goes on.
fn pipeline(times: u32, requests: &[Request], replies: &[u8]) -> Made {
    let (requests, replies) = (requests.to_vec(), replies.to_vec());
    let mut ledger = Ledger::default();
    let mut turn = move || {
        for _ in 0..times {
            for request in &requests {
                ledger.push(black_box(InFlight::client(*request, None)));
            }
        }
        for _ in 0..times {
            for reply in &replies {
                black_box(ledger.on_reply(black_box(*reply)));
            }
        }
        ledger.is_empty()
    };
    match turn() {
        true => Ok(repeat(move || {
            black_box(turn());
        })),
        false => Err("something is still in flight".into()),
    }
}
