//! Large messages pass in both directions.

use pgpalisade_test_servers::wire::Batch;

use super::check_once;

/// 50 MB in one DataRow, as hexadecimal text and so 100 MB on the wire.
#[test]
fn a_row_of_50_mb() {
    check_once(|talk| {
        talk.query("SELECT decode(repeat('5a', 50 * 1024 * 1024), 'hex') AS big, 'after' AS small");
        talk.query("SELECT 1");
    });
}

/// 50 MB in one Bind, one Query, and one CopyData.
#[test]
fn fifty_mb_to_the_server() {
    check_once(|talk| {
        let big = "y".repeat(50 * 1024 * 1024);
        let insert = Batch::new()
            .parse("", "INSERT INTO items VALUES (1, $1)")
            .bind("", "", &[Some(&big)]);
        talk.run(&insert.execute("", 0).sync());
        talk.run(
            &Batch::new()
                .query("COPY items FROM STDIN")
                .copy_data(format!("2\t{big}\n").as_bytes())
                .copy_done(),
        );
        talk.query(&format!("INSERT INTO items VALUES (3, '{big}')"));
        talk.query("SELECT id, length(name), md5(name) FROM items ORDER BY id");
    });
}

/// Many rows, so that the reply is far larger than all buffers, while more queries wait after it.
#[test]
fn many_rows_in_a_pipeline() {
    check_once(|talk| {
        let rows = "SELECT n, repeat('z', 100) FROM generate_series(1, 100000) n";
        talk.send(
            &Batch::new()
                .statement(rows)
                .sync()
                .query(rows)
                .query("SELECT 'last'"),
        );
        for _ in 0..3 {
            talk.read_until(b'Z');
        }
    });
}
