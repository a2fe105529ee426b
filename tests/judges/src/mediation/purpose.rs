//! Purposes of statements in a conversation.

/// Purpose of a statement. Each conversation weights the kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only reads.
    Read,
    /// Openly changes something that read-only mode does not protect.
    Piercing,
    /// Openly writes.
    Write,
    /// Writes without the text showing it.
    Hidden,
    /// Switches read-only mode off, openly or hidden.
    Lift,
    /// Changes `client_encoding`.
    Encoding,
    /// Ends a string early in another encoding.
    Smuggled,
    /// Changes `standard_conforming_strings`.
    Strings,
    /// Begins or ends a transaction or savepoint.
    Block,
    /// Prepared statements of SQL.
    Prepared,
    /// Cursors, and portals as cursors.
    Cursor,
    /// Fails.
    Error,
    /// Sets or clears a token.
    Token,
    /// COPY.
    Copy,
    /// RESET and DISCARD.
    Reset,
    /// Roles, schemas and other settings.
    Setting,
}
