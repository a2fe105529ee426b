//! Clients that send Terminate or close their sending side right after a request get all replies.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, TRUSTED, Wire};

use super::{SETUP, Talk, check_on, compare};

/// A client's end after a request.
#[derive(Clone, Copy, Debug)]
enum Parting {
    /// Terminate, in the same segment.
    Goodbye,
    /// The client closes its sending side.
    HalfClose,
}

fn parts(talk: &mut Talk<'_>, batch: &Batch, parting: Parting) {
    match parting {
        Parting::Goodbye => talk.send(&batch.clone().terminate()),
        Parting::HalfClose => {
            talk.send(batch);
            talk.wire.shut_down_writing();
        }
    }
    talk.read_until(0);
}

fn insert() -> Batch {
    Batch::new().query("INSERT INTO items VALUES (1, 'a') RETURNING id")
}

fn pipeline() -> Batch {
    Batch::new()
        .statement("INSERT INTO items VALUES (1, 'a')")
        .statement("SELECT count(*) FROM items")
}

/// Far more than the buffers of all sockets on the way.
const LARGE: &str = "SELECT repeat('x', 1000) FROM generate_series(1, 30000)";

#[test]
fn all_that_was_sent_is_answered() {
    let stage = Stage::with(SETUP);
    let requests = [
        Batch::new(),
        insert(),
        insert().then(&insert()),
        pipeline().sync(),
        // No message requests these replies.
        pipeline(),
        pipeline().flush(),
        Batch::new().query("BEGIN").then(&insert()),
        Batch::new().query("SELECT 1/0; SELECT 1"),
        Batch::new().query("SELECT pg_sleep(1), chatter(3)"),
        Batch::told(r"COPY items FROM STDIN + data 1\ta\n").0,
        Batch::told(r"COPY items FROM STDIN + data 1\ta\n + done").0,
        Batch::told(r"> COPY items FROM STDIN + data 1\ta\n").0,
        Batch::new()
            .query("COPY (SELECT repeat('y', 1000) FROM generate_series(1, 9000)) TO STDOUT"),
        Batch::new().query(LARGE),
        Batch::new().statement(LARGE).sync().query(LARGE),
    ];
    for request in &requests {
        for parting in [Parting::Goodbye, Parting::HalfClose] {
            println!(
                "{parting:?} behind {:?}",
                String::from_utf8_lossy(request.bytes())
            );
            let token = ("fencing.token", "1");
            check_on(&stage, PROTOCOL_3_0, token, |talk| {
                parts(talk, request, parting)
            });
        }
    }
}

/// Also without a token, with writes that the proxy itself refuses.
#[test]
fn refusals_are_answers_too() {
    let stage = Stage::with(SETUP);
    for parting in [Parting::Goodbye, Parting::HalfClose] {
        let mut talk = Talk {
            stage: &stage,
            endpoint: stage.proxy.endpoint(),
            wire: stage.plain(),
            log: Vec::new(),
        };
        let read = Batch::new().query("SELECT 1");
        parts(&mut talk, &insert().then(&read), parting);
        assert_eq!(talk.log[0].sqlstate(), "PF002");
        let direct = Wire::login(&stage.postgres.tcp(), &TRUSTED).query("SELECT 1");
        let (end, answers) = talk.log.split_last().unwrap();
        assert!(end.is_closed());
        compare(direct, answers[2..].to_vec());
    }
}

/// A disconnected client gets nothing, but its requests are still executed.
#[test]
fn what_a_client_has_sent_is_done_when_it_is_gone() {
    let stage = Stage::with(SETUP);
    for id in 0..20 {
        let mut leader = stage.leader("1");
        leader.send(
            &Batch::new()
                .query(&format!("INSERT INTO items VALUES ({id})"))
                .terminate(),
        );
    }
    pgpalisade_test_servers::machine::wait_until("the rows", || {
        stage.value("SELECT count(*) FROM items") == "20"
    });
}
