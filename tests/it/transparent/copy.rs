//! COPY in both directions and both protocols.

use pgpalisade_test_servers::wire::Batch;

use super::{Talk, check};

const IN: &str = "COPY items FROM STDIN";
const OUT: &str = "COPY items TO STDOUT";

fn count(talk: &mut Talk<'_>) {
    talk.query("SELECT count(*), max(name) FROM items");
}

#[test]
fn copy_in_simple() {
    check(|talk| {
        talk.send(&Batch::new().query(IN));
        talk.read_until(b'G');
        talk.run(
            &Batch::new()
                .copy_data(b"1\tone\n2\tt")
                .copy_data(b"wo\n3\t\\N\n")
                .copy_done(),
        );
        // Data sent along with the query, without waiting.
        talk.run(&Batch::new().query(IN).copy_data(b"4\tfour\n").copy_done());
        count(talk);
    });
}

#[test]
fn copy_in_extended() {
    check(|talk| {
        talk.send(&Batch::new().statement(IN).flush());
        talk.read_until(b'G');
        talk.run(&Batch::new().copy_data(b"1\tone\n").copy_done().sync());
        talk.run(
            &Batch::new()
                .statement(IN)
                .copy_data(b"2\ttwo\n")
                .copy_done()
                .sync(),
        );
        count(talk);
    });
}

/// The server ignores Sync and Flush within COPY data, whatever they contain.
#[test]
fn early_sync_is_ignored() {
    check(|talk| {
        for flush in [&b""[..], b"x"] {
            let early = Batch::new().statement(IN).sync();
            talk.send(
                &early
                    .message(b'H', flush)
                    .copy_data(b"1\tone\n")
                    .sync()
                    .message(b'H', flush)
                    .copy_data(b"2\ttwo\n")
                    .copy_done()
                    .sync(),
            );
            talk.read_until(b'Z');
            talk.query("DEALLOCATE ALL");
            count(talk);
        }
    });
}

#[test]
fn copy_fail() {
    check(|talk| {
        talk.run(
            &Batch::new()
                .query(IN)
                .copy_data(b"1\tone\n")
                .copy_fail("changed my mind"),
        );
        talk.run(
            &Batch::new()
                .statement(IN)
                .copy_data(b"1\tone\n")
                .copy_fail("again")
                .sync(),
        );
        talk.query("BEGIN");
        talk.run(&Batch::new().query(IN).copy_fail("in a transaction"));
        talk.query("ROLLBACK");
        count(talk);
    });
}

/// After a bad line the server discards the rest of the data.
#[test]
fn bad_copy_data() {
    check(|talk| {
        talk.run(
            &Batch::new()
                .query(IN)
                .copy_data(b"not a number\n")
                .copy_data(b"2\ttwo\n")
                .copy_done(),
        );
        let extended = Batch::new()
            .statement(IN)
            .copy_data(b"bad\n")
            .copy_data(b"2\ttwo\n")
            .copy_done();
        talk.run(&extended.statement("SELECT 'skipped'").sync());
        talk.run(&Batch::new().copy_data(b"stray").copy_done().sync());
        count(talk);
    });
}

#[test]
fn copy_out() {
    check(|talk| {
        talk.query("INSERT INTO items SELECT n, repeat('x', n) FROM generate_series(1, 300) n");
        talk.query(OUT);
        talk.run(&Batch::new().statement(OUT).statement("SELECT 1").sync());
        talk.query("COPY (SELECT id, name FROM items WHERE id < 4) TO STDOUT (FORMAT binary)");
        talk.query("COPY (SELECT 1/(id - 300) FROM items ORDER BY id) TO STDOUT");
    });
}

#[test]
fn several_copies_in_one_string() {
    check(|talk| {
        talk.send(
            &Batch::new().query(
                "COPY items FROM STDIN; COPY items FROM STDIN; COPY items TO STDOUT; SELECT 1",
            ),
        );
        talk.read_until(b'G');
        talk.send(&Batch::new().copy_data(b"1\tone\n").copy_done());
        talk.read_until(b'G');
        talk.run(&Batch::new().copy_data(b"2\ttwo\n").copy_done());
    });
}

/// Two COPYs in one pipeline, with other statements around them, all in one write.
#[test]
fn pipelined_copies() {
    check(|talk| {
        let copy = |data: &[u8]| Batch::new().statement(IN).copy_data(data).copy_done();
        let all = Batch::new()
            .statement("SELECT 'before'")
            .then(&copy(b"1\tone\n"))
            .statement("SELECT 'between'");
        talk.run(&all.then(&copy(b"2\ttwo\n")).statement(OUT).sync());
        count(talk);
    });
}
