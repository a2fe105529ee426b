//! What the proxy itself says to PostgreSQL inside a client's session.
//!
//! Always in the extended protocol under a name of its own, never as a simple Query: that would
//! destroy the client's unnamed statement and end the transaction of its pipeline.

use bytes::{BufMut, BytesMut};
use pgpalisade_policies::Lifetime;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use super::Pipeline;
use super::in_flight::{InFlight, Request};
use super::ledger::Ledger;
use super::read_only::Adjustment;
use crate::rejection::Rejection;

/// The name of the proxy's prepared statement and portal. A client that used it would get an error.
const NAME: &str = "pgpalisade";

/// A text that PostgreSQL refuses, so that a refusal by the fence fails the client's transaction as
/// any error would. It shows up in the server's log.
const REFUSED: &str = "REFUSED BY PGPALISADE /* stands for a statement that the fence refused */";

/// Has the question behind it wait for no other transaction, as a deferrable serializable one would. SET TRANSACTION
/// would leave a warning in the server's log.
pub(super) const WAIT_FOR_NONE: &str = "SET transaction_isolation = 'read committed'";

/// Asks which process has read what was sent before, and has the session keep its encoding when the server reads its
/// files again.
pub(super) const WHICH_PROCESS: &str = "SELECT pg_catalog.pg_backend_pid(), \
    pg_catalog.set_config('client_encoding', pg_catalog.current_setting('client_encoding'), false)";

/// Makes the open transaction read-write. PostgreSQL refuses that after its first query.
pub(super) const LIFT: &str = "SET transaction_read_only = off";

/// What an adjustment does to the default. To give it back is to return to the value of the session's start, which only
/// the server knows: the startup packet, the role and the database have a say in it.
#[must_use]
pub(super) const fn default_access(adjustment: Adjustment) -> &'static str {
    match adjustment {
        Adjustment::Guard => "SET default_transaction_read_only = on",
        Adjustment::Release | Adjustment::Lift(Lifetime::Session) => {
            "SET default_transaction_read_only TO DEFAULT"
        }
        Adjustment::Lift(Lifetime::Local) => "SET LOCAL default_transaction_read_only TO DEFAULT",
    }
}

/// The SQL that puts a value of the proxy's where the client's statements find it.
#[must_use]
pub(super) fn setting(name: &str, value: &str, lifetime: Lifetime) -> String {
    let local = match lifetime {
        Lifetime::Session => "",
        Lifetime::Local => "LOCAL ",
    };
    format!(
        "SET {local}{name} = {}",
        postgres_protocol::escape::escape_literal(value).trim_start()
    )
}

/// Writes the messages that run one statement. Outside of a pipeline a Sync follows.
///
/// `error` is what the client gets where the statement fails.
pub(super) fn execute(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    pipeline: Pipeline,
    sql: &str,
    error: Option<Box<Rejection>>,
) {
    // The texts are ours: no NUL, and far below the length that a message can have. An earlier
    // statement of ours that failed was not closed; closing what is not there is no error.
    let written = frontend::close(b'S', NAME, out)
        .and_then(|()| frontend::parse(NAME, sql, [], out))
        .and_then(|()| {
            frontend::bind(NAME, NAME, [], [(); 0], |(), _| Ok(IsNull::Yes), [], out)
                .map_err(io_error)
        })
        .and_then(|()| frontend::execute(NAME, 0, out))
        // The portal would outlive its statement, up to the end of the transaction.
        .and_then(|()| frontend::close(b'P', NAME, out))
        .and_then(|()| frontend::close(b'S', NAME, out));
    debug_assert!(written.is_ok(), "{sql}");
    let mut execute = InFlight::proxy(Request::Execute);
    execute.error = error;
    for entry in [
        InFlight::proxy(Request::Close),
        InFlight::proxy(Request::Parse),
        InFlight::proxy(Request::Bind),
        execute,
        InFlight::proxy(Request::Close),
        InFlight::proxy(Request::Close),
    ] {
        ledger.push(entry);
    }
    if pipeline == Pipeline::Closed {
        frontend::sync(out);
        ledger.push(InFlight::proxy(Request::Sync));
    }
}

/// Has the server show a text as the last query of the session: an empty statement, which changes nothing, takes no
/// snapshot, and is parsed in whatever state the session is.
pub(super) fn leave_trace(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    pipeline: Pipeline,
    comment: &str,
) {
    let written = frontend::close(b'S', NAME, out)
        .and_then(|()| frontend::parse(NAME, comment, [], out))
        .and_then(|()| frontend::close(b'S', NAME, out));
    debug_assert!(written.is_ok());
    for request in [Request::Close, Request::Parse, Request::Close] {
        ledger.push(InFlight::proxy(request));
    }
    if pipeline == Pipeline::Closed {
        frontend::sync(out);
        ledger.push(InFlight::proxy(Request::Sync));
    } else {
        flush(out);
    }
}

/// Writes a message that fails in the place of a refused request; the client gets `error`. Where
/// `sync` is given, a Sync follows whose ReadyForQuery is the client's.
pub(super) fn refuse(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    error: Box<Rejection>,
    sync: Option<InFlight>,
) {
    let written = frontend::parse(NAME, REFUSED, [], out);
    debug_assert!(written.is_ok());
    let mut parse = InFlight::proxy(Request::Parse);
    parse.error = Some(error);
    ledger.push(parse);
    if let Some(sync) = sync {
        frontend::sync(out);
        ledger.push(sync);
    }
}

/// Asks for the replies so far.
pub(super) fn flush(out: &mut BytesMut) {
    out.put_slice(b"H\0\0\0\x04");
}

/// Ends a COPY FROM STDIN with an error.
pub(super) fn copy_fail(out: &mut BytesMut, ledger: &mut Ledger) {
    let written = frontend::copy_fail("refused by pgpalisade", out);
    debug_assert!(written.is_ok());
    ledger.end_copy_in();
}

fn io_error(error: frontend::BindError) -> std::io::Error {
    match error {
        frontend::BindError::Conversion(error) => std::io::Error::other(error),
        frontend::BindError::Serialization(error) => error,
    }
}
