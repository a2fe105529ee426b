//! What statements of a conversation are for.

/// What a statement is for. A conversation gives each kind a weight of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only reads.
    Read,
    /// It changes something that read-only mode does not keep it from, and says so.
    Piercing,
    /// It says that it writes.
    Write,
    /// It writes where the text does not show it.
    Hidden,
    /// It switches read-only mode off, seen or unseen.
    Lift,
    /// It changes `client_encoding`.
    Encoding,
    /// It ends a string where another encoding would not.
    Smuggled,
    /// It changes `standard_conforming_strings`.
    Strings,
    /// It begins or ends a transaction or savepoint.
    Block,
    /// SQL's prepared statements.
    Prepared,
    /// Cursors, and portals as cursors.
    Cursor,
    /// It fails.
    Error,
    /// It sets or lays down a token.
    Token,
    /// COPY.
    Copy,
    /// RESET and DISCARD.
    Reset,
    /// Roles, schemas and other settings.
    Setting,
}
