//! Server connections that are lost in a transaction or statement: their clients stay.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, errors, tags, trusted};

use super::{MOMENT, backend, scarce, stage};

/// Declares the next token in another session.
fn take_over(stage: &Stage, token: &str) {
    stage.plain().ok(&format!("SET fencing.token = {token}"));
}

fn terminate(stage: &Stage, pid: &str) {
    let ended = stage.value(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    assert_eq!(ended, "t");
}

/// Sends a query, and gets an error and this transaction state.
fn fails_in(wire: &mut Wire, sql: &str, sqlstate: &str, state: &str) {
    let answer = wire.fails(sql, sqlstate);
    assert_eq!(tags(&answer), format!("E Z{state}"), "{sql}");
    assert_eq!(answer[0].severity(), "ERROR");
}

#[test]
fn a_transaction_that_is_taken_over_has_failed() {
    let stage = stage("4");
    let mut leader = stage.leader("34");
    leader.ok("BEGIN");
    leader.ok("INSERT INTO jobs VALUES (1)");
    take_over(&stage, "35");
    fails_in(&mut leader, "INSERT INTO jobs VALUES (2)", "PF001", "E");
    fails_in(&mut leader, "INSERT INTO jobs VALUES (3)", "25P02", "E");
    fails_in(&mut leader, "ROLLBACK TO SAVEPOINT a", "3B001", "E");
    assert_eq!(tags(&leader.query("COMMIT AND CHAIN")), "C ZT");
    assert_eq!(tags(&leader.query("ROLLBACK")), "C ZI");
    assert_eq!(leader.rows("SELECT count(*) FROM jobs"), [["0"]]);
    leader.fails("INSERT INTO jobs VALUES (4)", "PF001");
    // A token of its own transaction is declared as ever.
    leader.ok("BEGIN; SET LOCAL fencing.token = 35; INSERT INTO jobs VALUES (5); COMMIT");
    assert_eq!(
        stage.value("SELECT string_agg(id::text, '') FROM jobs"),
        "5"
    );
}

/// The proxy knows the mark, so nobody is asked.
#[test]
fn a_stale_leader_that_tries_again_and_again_costs_no_server_connection() {
    let stage = scarce("5s");
    let mut leader = stage.leader("34");
    take_over(&stage, "35");
    leader.fails("INSERT INTO jobs VALUES (1)", "PF001");
    let mut web = stage.plain();
    let before = backend(&mut web);
    for sql in [
        "INSERT INTO jobs VALUES (2)",
        "SET fencing.token = 33",
        "BEGIN; SET LOCAL fencing.token = 34; COMMIT",
    ] {
        leader.fails(sql, "PF001");
        assert_eq!(backend(&mut web), before, "{sql}");
    }
    let mut late = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", "34")]);
    assert_eq!(errors(&late.until_closed()), ["PF001"]);
    assert_eq!(backend(&mut web), before, "a login");
}

#[test]
fn a_transaction_without_a_token_ends_with_its_server() {
    let stage = stage("4");
    let mut web = stage.plain();
    web.ok("BEGIN");
    let pid = backend(&mut web);
    terminate(&stage, &pid);
    let pipeline = Batch::new().statement("SELECT 1").statement("SELECT 2");
    let answer = web.run(&pipeline.clone().sync());
    assert_eq!(tags(&answer), "E ZE");
    assert_eq!(answer[0].sqlstate(), "57P01");
    assert_eq!(tags(&web.run(&pipeline.sync())), "E ZE");
    assert_eq!(tags(&web.query("ROLLBACK")), "C ZI");
    web.ok("SELECT 1");
    assert_ne!(backend(&mut web), pid);
}

#[test]
fn a_statement_that_is_ended_is_answered() {
    let stage = stage("4");
    let mut web = stage.plain();
    let sleeping = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'";
    for sleep in [
        Batch::new().query("SELECT pg_sleep(100)"),
        Batch::new().statement("SELECT pg_sleep(100)").sync(),
    ] {
        web.send(&sleep);
        wait_until("the statement", || !stage.sql(sleeping).is_empty());
        terminate(&stage, &stage.value(sleeping));
        let answer = tags(&web.until_ready());
        assert!(answer.ends_with("E ZI"), "{answer}");
        web.ok("SELECT 1");
    }
}

#[test]
fn a_copy_that_is_taken_over_drops_its_data() {
    let stage = stage("4");
    let mut leader = stage.leader("34");
    leader.send(&Batch::new().query("COPY jobs FROM STDIN"));
    leader.until(b'G');
    let data = Batch::new().copy_data(&b"1\n".repeat(20_000));
    let (front, rest) = data.bytes().split_at(20_000);
    leader.send_bytes(front);
    std::thread::sleep(MOMENT);
    take_over(&stage, "35");
    assert_eq!(tags(&leader.until_ready()), "E ZI");
    leader.send_bytes(rest);
    let rest = Batch::new().copy_data(b"2\n").copy_data(b"3\n").copy_done();
    let answer = leader.run(&rest.query("SELECT count(*) FROM jobs"));
    assert_eq!(answer[1].row(), ["0"]);
}

/// Also the error that puts a client into a failed transaction of its next connection.
#[test]
fn an_error_ends_the_connection_of_a_client_that_wants_that() {
    let stage = stage("4");
    let login = |more: &[_]| {
        let more = [&[("options", "-c exit_on_error=on")], more].concat();
        Wire::login(&stage.proxy.endpoint(), &trusted(&more))
    };
    let mut client = login(&[]);
    client.ok("BEGIN");
    client.ok("SELECT 1");
    fails_in(&mut client, "SELECT 1 / 0", "22012", "E");
    let answer = client.query("SELECT 2");
    assert_eq!(
        (errors(&answer), &*tags(&answer)),
        (vec!["58000".to_owned()], "E closed")
    );
    // It is certain that the server has committed nothing.
    let mut leader = login(&[("fencing.token", "5")]);
    fails_in(&mut leader, "INSERT INTO jobs VALUES (1 / 0)", "22012", "I");
    leader.ok("INSERT INTO jobs VALUES (1)");
}

/// A write that may have been committed is not said to be lost.
#[test]
fn a_crash_is_told_as_what_it_is() {
    let mut stage = stage("4");
    let (mut reader, mut writer, mut idle) = (stage.plain(), stage.leader("34"), stage.plain());
    idle.ok("BEGIN; SELECT 1");
    reader.send(&Batch::new().query("SELECT pg_sleep(100)"));
    writer.send(&Batch::new().query("INSERT INTO jobs SELECT 1 FROM pg_sleep(100)"));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FROM pg_sleep%' AND \
                    pid <> pg_backend_pid()";
    wait_until("the statement", || stage.value(sleeping) == "1");
    std::thread::sleep(MOMENT);
    stage.postgres.crash();
    stage.postgres.start_again(&[]);
    let answer = reader.until_ready();
    let error = answer.iter().find(|message| message.tag == b'E').unwrap();
    assert!(
        ["08006", "57P01", "57P02", "PF007"].contains(&&*error.sqlstate()),
        "{}",
        error.sqlstate()
    );
    let answer = writer.until_ready();
    assert_eq!(
        (tags(&answer), answer[0].sqlstate()),
        ("E ZI".to_owned(), "08007".to_owned())
    );
    let answer = idle.query("SELECT 1");
    assert_eq!(tags(&answer), "E ZE");
    idle.ok("ROLLBACK");
    for client in [&mut reader, &mut idle] {
        client.ok("SELECT 1");
    }
    writer.ok("INSERT INTO jobs VALUES (2)");
}

/// The client would not notice that what it has left is gone.
#[test]
fn a_client_that_keeps_its_connection_ends_with_it() {
    let stage = stage("4");
    let mut listener = stage.plain();
    listener.ok("LISTEN c");
    let pid = backend(&mut listener);
    terminate(&stage, &pid);
    let answer = listener.until_closed();
    assert_eq!(
        (answer[0].severity(), answer[0].sqlstate()),
        ("FATAL".to_owned(), "57P01".to_owned())
    );
}
