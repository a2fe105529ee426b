//! COPY in both directions and both protocols.

use super::check_said;

told! {
    check_said;

    /// Data sent along with the query, too, without waiting. After a bad line the server discards the rest.
    copy_in: r"
G: COPY items FROM STDIN
Z: data 1\tone\n2\tt + data wo\n3\t\N\n + done
COPY items FROM STDIN + data 4\tfour\n + done
SELECT count(*), max(name) FROM items

G: > COPY items FROM STDIN + flush
data 1\tone\n + done + sync
> COPY items FROM STDIN + data 2\ttwo\n + done + sync
SELECT count(*), max(name) FROM items

COPY items FROM STDIN + data 1\tone\n + fail changed my mind
> COPY items FROM STDIN + data 1\tone\n + fail again + sync
BEGIN
COPY items FROM STDIN + fail in a transaction
ROLLBACK
SELECT count(*), max(name) FROM items

COPY items FROM STDIN + data not a number\n + data 2\ttwo\n + done
> COPY items FROM STDIN + data bad\n + data 2\ttwo\n + done + > SELECT 'skipped' + sync
data stray + done + sync
SELECT count(*), max(name) FROM items";

    /// The server ignores Sync and Flush within COPY data, whatever they contain.
    early_sync_is_ignored: r"
Z: > COPY items FROM STDIN + sync + flush + data 1\tone\n + sync + flush + data 2\ttwo\n + done + sync
DEALLOCATE ALL
SELECT count(*), max(name) FROM items

Z: > COPY items FROM STDIN + sync + flush x + data 1\tone\n + sync + flush x + data 2\ttwo\n + done + sync
DEALLOCATE ALL
SELECT count(*), max(name) FROM items";

    copy_out: "
INSERT INTO items SELECT n, repeat('x', n) FROM generate_series(1, 300) n
COPY items TO STDOUT
> COPY items TO STDOUT + > SELECT 1 + sync
COPY (SELECT id, name FROM items WHERE id < 4) TO STDOUT (FORMAT binary)
COPY (SELECT 1/(id - 300) FROM items ORDER BY id) TO STDOUT";

    /// In one string, and in one pipeline with other statements around them, all in one write.
    several_copies: "
G: COPY items FROM STDIN; COPY items FROM STDIN; COPY items TO STDOUT; SELECT 1
G: data 1\\tone\\n + done
Z: data 2\\ttwo\\n + done

> SELECT 'before' + > COPY items FROM STDIN + data 1\\tone\\n + done + > SELECT 'between' \
    + > COPY items FROM STDIN + data 2\\ttwo\\n + done + > COPY items TO STDOUT + sync
SELECT count(*), max(name) FROM items";
}
