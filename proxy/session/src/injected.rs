//! The proxy's own messages to PostgreSQL inside a client's session.
//!
//! They use the extended protocol and their own name. A simple Query would destroy the client's unnamed statement and
//! end the transaction of its pipeline.

use bytes::{BufMut, BytesMut};
use pgpalisade_policies::Lifetime;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use super::Pipeline;
use super::in_flight::{InFlight, Origin, Request};
use super::ledger::Ledger;
use super::name_change::NameChange;
use super::read_only::AccessChange;
use crate::rejection::Rejection;

/// Name of the proxy's prepared statement and portal. A client that uses it gets an error.
const NAME: &str = "pgpalisade";

/// Text that PostgreSQL rejects, so that a refusal fails the client's transaction like any error. The server logs it.
const REFUSED: &str = "REFUSED BY PGPALISADE /* stands for a statement that the fence refused */";

/// Makes the query after it wait for no other transaction, which a deferrable serializable one would do. SET
/// TRANSACTION would leave a warning in the server's log.
pub(super) const WAIT_FOR_NONE: &str = "SET transaction_isolation = 'read committed'";

/// Asks which process has read the messages before it, and keeps the session's encoding when the server reloads its
/// configuration files.
pub(super) const WHICH_PROCESS: &str = "SELECT pg_catalog.pg_backend_pid(), \
    pg_catalog.set_config('client_encoding', pg_catalog.current_setting('client_encoding'), false)";

/// Keeps a session's encoding as [`WHICH_PROCESS`] does.
pub(super) const UTF8: &str = "SET client_encoding = 'UTF8'";

/// Removes what a client has left in the session, but for the seed of random().
/// <https://www.postgresql.org/docs/current/sql-discard.html>
pub(super) const DISCARD: &str = "DISCARD ALL";

/// Makes the open transaction read-write. PostgreSQL refuses that after its first query.
pub(super) const READ_WRITE: &str = "SET transaction_read_only = off";

/// SQL for a change of the default. TO DEFAULT returns to the value at the session's start. Only the server knows it,
/// from the startup packet, the role and the database.
#[must_use]
pub(super) const fn default_access(change: AccessChange) -> &'static str {
    match change {
        AccessChange::Guard => "SET default_transaction_read_only = on",
        AccessChange::Release | AccessChange::ReadWrite(Lifetime::Session) => {
            "SET default_transaction_read_only TO DEFAULT"
        }
        AccessChange::ReadWrite(Lifetime::Local) => {
            "SET LOCAL default_transaction_read_only TO DEFAULT"
        }
    }
}

/// SQL that sets a value of the proxy, so that the client's statements find it.
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

/// Ends all prepared statements.
pub(super) const DEALLOCATE_ALL: &str = "DEALLOCATE ALL";

/// Writes a simple Query, while no client's statement is in the session.
pub(super) fn query(out: &mut BytesMut, ledger: &mut Ledger, sql: impl AsRef<[u8]>) {
    message(out, b'Q', &[sql.as_ref(), b"\0"]);
    ledger.push_own(InFlight::proxy(Request::Query));
}

/// Writes the messages that run one statement, with a Sync outside a pipeline.
///
/// If the statement fails, the client gets `error`.
pub(super) fn execute(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    pipeline: Pipeline,
    sql: &str,
    error: Option<Box<Rejection>>,
) {
    // The texts contain no NUL and are far shorter than a message may be. An earlier one that failed was not closed;
    // closing a missing name is no error.
    let written = frontend::close(b'S', NAME, out)
        .and_then(|()| frontend::parse(NAME, sql, [], out))
        .and_then(|()| {
            frontend::bind(NAME, NAME, [], [(); 0], |(), _| Ok(IsNull::Yes), [], out)
                .map_err(io_error)
        })
        .and_then(|()| frontend::execute(NAME, 0, out))
        // The portal would outlive its statement, until the transaction ends.
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
        ledger.push_own(entry);
    }
    if pipeline == Pipeline::Closed {
        sync(out, ledger);
    }
}

/// Makes the server show a text as the last query of the session. An empty statement changes nothing, takes no
/// snapshot, and is parsed in any transaction state.
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
        ledger.push_own(InFlight::proxy(request));
    }
    if pipeline == Pipeline::Closed {
        sync(out, ledger);
    } else {
        flush(out);
    }
}

/// Writes a Parse that fails.
fn fail(out: &mut BytesMut) {
    let written = frontend::parse(NAME, REFUSED, [], out);
    debug_assert!(written.is_ok());
}

/// Writes a message that fails in place of a refused request; the client gets `error`. With `sync`, a Sync follows
/// whose ReadyForQuery is the client's.
pub(super) fn refuse(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    error: Box<Rejection>,
    sync: Option<InFlight>,
) {
    fail(out);
    let mut parse = InFlight::proxy(Request::Parse);
    parse.error = Some(error);
    ledger.push_own(parse);
    if let Some(sync) = sync {
        frontend::sync(out);
        ledger.push_own(sync);
    }
}

/// Writes a Parse of the client's statement, whose body without the name is `rest`. Under this name the server may have
/// a statement that is no longer the client's.
pub(super) fn parse(
    out: &mut BytesMut,
    ledger: &mut Ledger,
    name: &[u8],
    rest: &[u8],
    entry: InFlight,
) {
    if !name.is_empty() {
        close(out, ledger, name);
    }
    message(out, b'P', &[name, b"\0", rest]);
    ledger.push_own(entry);
}

/// Writes a Describe of a statement.
pub(super) fn describe(out: &mut BytesMut, ledger: &mut Ledger, name: &[u8], entry: InFlight) {
    message(out, b'D', &[b"S", name, b"\0"]);
    ledger.push_own(entry);
}

/// Writes a Close of a statement that is not the client's. Only a timeout makes it fail, which counts as the client's.
pub(super) fn close(out: &mut BytesMut, ledger: &mut Ledger, name: &[u8]) {
    message(out, b'C', &[b"S", name, b"\0"]);
    let mut close = InFlight::new(Request::Close, Origin::ParsedAgain, None);
    close.name = NameChange::Vacate(name.into());
    ledger.push_own(close);
}

/// Ends what a simple Query would end, in a request cycle of its own. An empty Query leaves the unnamed portal.
pub(super) fn close_unnamed(out: &mut BytesMut, ledger: &mut Ledger) {
    for kind in [b"S\0", b"P\0"] {
        message(out, b'C', &[kind]);
        ledger.push_own(InFlight::proxy(Request::Close));
    }
    sync(out, ledger);
}

/// Writes a message that fails in place of one about a statement whose result type has changed, and closes that.
pub(super) fn refuse_outdated(out: &mut BytesMut, ledger: &mut Ledger, name: &[u8]) {
    close(out, ledger, name);
    fail(out);
    ledger.push_own(InFlight::new(Request::Parse, Origin::Outdated, None));
}

/// Ends a request cycle of the proxy.
pub(super) fn sync(out: &mut BytesMut, ledger: &mut Ledger) {
    frontend::sync(out);
    ledger.push_own(InFlight::proxy(Request::Sync));
}

/// Writes a message from the parts of its body.
fn message(out: &mut BytesMut, tag: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.put_u8(tag);
    // The parts are short, or come from a message of the client, which was not longer.
    out.put_i32(i32::try_from(length + 4).unwrap_or(i32::MAX));
    parts.iter().for_each(|part| out.put_slice(part));
}

/// Begins a transaction, and fails it.
pub(super) fn begin_failed(out: &mut BytesMut, ledger: &mut Ledger) {
    execute(out, ledger, Pipeline::Open, "BEGIN", None);
    fail(out);
    ledger.push(InFlight::proxy(Request::Parse));
    sync(out, ledger);
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
