//! Purposes of statements in a conversation.

/// Purpose of a statement. Each conversation weights the kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    /// Openly changes something that read-only mode does not protect.
    Piercing,
    Write,
    /// The text does not show the write.
    Hidden,
    /// Switches read-only mode off, openly or hidden.
    Lift,
    Encoding,
    /// Ends a string early in another encoding.
    Smuggled,
    Strings,
    Block,
    Prepared,
    Cursor,
    Error,
    Token,
    Copy,
    Reset,
    Setting,
}
