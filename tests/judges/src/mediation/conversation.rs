//! A client's side of a conversation, as data: it can be sent, printed, and shortened.

use std::fmt;

use clap::ValueEnum;
use pgpalisade_test_servers::wire::Batch;

#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub session: Session,
    pub database: Database,
    pub startup: Vec<(String, String)>,
    pub steps: Vec<Step>,
}

/// Kind of session. Tokens in texts are relative: `@0` is the conversation's own number, `@1` the next. Tokens below
/// 10 are stale in every scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Session {
    /// Holds no token; every write needs the token of scope `default`.
    Bare,
    /// Holds the current token of scope `other`, which no write needs.
    Elsewhere,
    /// As [`Self::Elsewhere`], with a token taken in its startup packet.
    Taker,
    /// Holds no token; a policy lists the tables of two scopes.
    Ungoverned,
    /// With that policy, holds the current token of scope `b`, and may write only `b.jobs`.
    Neighbour,
    /// Starts with `@0`, the current token. Others may take over, and it may change or clear its token.
    Holder,
    /// Holds no token; with a policy, may write every table that the policy does not list.
    Free,
    /// With a policy, holds the current token of scope `b`, and may not even read the tables of `a`.
    Reader,
    /// Holds `@0` from its startup packet to its end, and must have a twin.
    Faithful,
    /// As [`Self::Faithful`], but declares the token in its first statement.
    Late,
    /// As [`Self::Faithful`], with a policy and the tokens of all scopes.
    Ruler,
}

impl Session {
    pub fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    /// Whether it runs in a world with a policy.
    pub const fn is_governed(self) -> bool {
        matches!(
            self,
            Self::Ungoverned | Self::Neighbour | Self::Free | Self::Reader | Self::Ruler
        )
    }

    /// Whether it may change nothing at all.
    pub const fn is_strict(self) -> bool {
        matches!(
            self,
            Self::Bare | Self::Elsewhere | Self::Taker | Self::Ungoverned
        )
    }

    /// Whether it may write some tables and not others. Writes hidden from its policy are outside the guarantee.
    pub const fn is_neighbour(self) -> bool {
        matches!(self, Self::Neighbour | Self::Free | Self::Reader)
    }

    /// Whether PostgreSQL must reply to it as without the proxy.
    pub const fn has_twin(self) -> bool {
        matches!(self, Self::Faithful | Self::Late | Self::Ruler)
    }

    pub const fn user(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Reader => "careful",
            _ => "postgres",
        }
    }

    /// Of its startup packet.
    pub const fn token(self) -> Option<&'static str> {
        match self {
            Self::Bare | Self::Ungoverned | Self::Free | Self::Late => None,
            Self::Elsewhere => Some("other=@0"),
            Self::Taker => Some("other=next"),
            Self::Neighbour | Self::Reader => Some("b=@0"),
            Self::Holder | Self::Faithful => Some("@0"),
            Self::Ruler => Some("default=@0,a=@0,b=@0"),
        }
    }

    /// Declared by its first statement, before the conversation.
    pub const fn first_token(self) -> Option<&'static str> {
        match self {
            Self::Late => Some("@0"),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Database {
    Utf8,
    Latin1,
    EucJp,
    SqlAscii,
}

impl Database {
    /// Most conversations use the first.
    pub const ALL: [Self; 4] = [Self::Utf8, Self::Latin1, Self::EucJp, Self::SqlAscii];

    pub const fn encoding(self) -> &'static str {
        match self {
            Self::Utf8 => "UTF8",
            Self::Latin1 => "LATIN1",
            Self::EucJp => "EUC_JP",
            Self::SqlAscii => "SQL_ASCII",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Appends a message to the next packet.
    Say(Message),
    Send,
    /// Sends the packet and waits for the due replies.
    Wait,
    /// Sends the packet; then another session declares this token of scope `default` and waits for the reply.
    Declare(&'static str),
}

pub type Sql = Vec<u8>;

pub type Name = Vec<u8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Statement,
    Portal,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Statements in one text.
    Query(Vec<Sql>),
    /// Name and text.
    Parse(Name, Sql),
    /// Portal, statement, and parameter values.
    Bind(Name, Name, Vec<Sql>),
    Describe(Target, Name),
    /// Portal and row limit; 0 means all.
    Execute(Name, u32),
    Close(Target, Name),
    Flush,
    Sync,
    /// Signature of the function, and arguments.
    FunctionCall(&'static str, Vec<&'static str>),
    CopyData(Sql),
    CopyDone,
    CopyFail,
    /// Type and body of a message that violates the protocol.
    Malformed(u8, Vec<u8>),
}

impl Message {
    /// Whether ReadyForQuery follows if nothing precedes the message.
    pub const fn ends_with_ready(&self) -> bool {
        matches!(
            self,
            Self::Query(_)
                | Self::Sync
                | Self::FunctionCall(..)
                | Self::Malformed(b'S' | b'Q' | b'F', _)
        )
    }

    /// Appends the message to `batch`. `number` is the conversation's, `oid` resolves functions.
    pub fn onto(&self, batch: Batch, number: u64, oid: &dyn Fn(&str) -> u32) -> Batch {
        let told = |sql: &[u8]| with_tokens(sql, number);
        match self {
            Self::Query(parts) => {
                batch.message(b'Q', &terminated(&[&told(&parts.join(&b"; "[..]))]))
            }
            Self::Parse(name, sql) => batch.message(
                b'P',
                &[terminated(&[name, &told(sql)]), vec![0, 0]].concat(),
            ),
            Self::Bind(portal, statement, values) => {
                let mut body = terminated(&[portal, statement]);
                body.extend_from_slice(&[0, 0]);
                body.extend_from_slice(
                    &u16::try_from(values.len())
                        .expect("few values")
                        .to_be_bytes(),
                );
                for value in values {
                    let value = told(value);
                    body.extend_from_slice(
                        &u32::try_from(value.len()).expect("short").to_be_bytes(),
                    );
                    body.extend_from_slice(&value);
                }
                body.extend_from_slice(&[0, 0]);
                batch.message(b'B', &body)
            }
            Self::Describe(target, name) => batch.message(b'D', &targeted(*target, name)),
            Self::Execute(portal, rows) => batch.message(
                b'E',
                &[terminated(&[portal]), rows.to_be_bytes().to_vec()].concat(),
            ),
            Self::Close(target, name) => batch.message(b'C', &targeted(*target, name)),
            Self::Flush => batch.flush(),
            Self::Sync => batch.sync(),
            Self::FunctionCall(function, arguments) => {
                batch.function_call(oid(function), arguments)
            }
            Self::CopyData(data) => batch.copy_data(data),
            Self::CopyDone => batch.copy_done(),
            Self::CopyFail => batch.copy_fail("enough"),
            Self::Malformed(tag, body) => batch.message(*tag, body),
        }
    }
}

fn targeted(target: Target, name: &[u8]) -> Vec<u8> {
    let byte = match target {
        Target::Statement => b'S',
        Target::Portal => b'P',
    };
    [vec![byte], terminated(&[name])].concat()
}

fn terminated(strings: &[&[u8]]) -> Vec<u8> {
    strings
        .iter()
        .flat_map(|text| [text, &[0][..]].concat())
        .collect()
}

/// Text with the conversation's tokens inserted.
pub fn with_tokens(text: &[u8], number: u64) -> Vec<u8> {
    let mut told = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let token = match (byte, behind.first()) {
            (b'@', Some(digit @ b'0'..=b'9')) => Some(number + u64::from(digit - b'0')),
            _ => None,
        };
        match token {
            Some(token) => {
                told.extend_from_slice(token.to_string().as_bytes());
                rest = &behind[1..];
            }
            None => {
                told.push(byte);
                rest = behind;
            }
        }
    }
    told
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {:?}", self.session)?;
        if self.database != Database::Utf8 {
            write!(f, " in {}", self.database.encoding())?;
        }
        if let Some(token) = self.session.token() {
            write!(f, " fencing.token={token}")?;
        }
        for (name, value) in &self.startup {
            write!(f, " {name}={value}")?;
        }
        if let Some(token) = self.session.first_token() {
            write!(f, "\n  answered: SET fencing.token = '{token}'")?;
        }
        for step in &self.steps {
            match step {
                Step::Say(message) => write!(f, "\n    {message}")?,
                Step::Send => f.write_str("\n  sent")?,
                Step::Wait => f.write_str("\n  sent, answered")?,
                Step::Declare(token) => write!(f, "\n  sent; another session declares {token}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Query(parts) => write!(f, "Query {}", shown(&parts.join(&b"; "[..]))),
            Self::Parse(name, sql) => write!(f, "Parse {} {}", named(name), shown(sql)),
            Self::Bind(portal, statement, values) => {
                write!(f, "Bind {} to {}", named(portal), named(statement))?;
                values
                    .iter()
                    .try_for_each(|value| write!(f, " {}", shown(value)))
            }
            Self::Describe(target, name) => write!(f, "Describe {target:?} {}", named(name)),
            Self::Execute(portal, rows) => write!(f, "Execute {} rows {rows}", named(portal)),
            Self::Close(target, name) => write!(f, "Close {target:?} {}", named(name)),
            Self::FunctionCall(function, arguments) => {
                write!(f, "FunctionCall {function} {arguments:?}")
            }
            Self::CopyData(data) => write!(f, "CopyData {}", shown(data)),
            Self::Malformed(tag, body) => {
                write!(
                    f,
                    "'{}' with the body {}",
                    char::from(*tag),
                    body.escape_ascii()
                )
            }
            Self::Flush => f.write_str("Flush"),
            Self::Sync => f.write_str("Sync"),
            Self::CopyDone => f.write_str("CopyDone"),
            Self::CopyFail => f.write_str("CopyFail"),
        }
    }
}

/// Bytes beyond ASCII as `\xE9`.
fn shown(text: &[u8]) -> String {
    let mut line = String::new();
    for &byte in text {
        match byte {
            b' '..=b'~' => line.push(char::from(byte)),
            byte => line.push_str(&format!("<{byte:02x}>")),
        }
    }
    line
}

/// A long name is abbreviated to its ends and length.
fn named(name: &[u8]) -> String {
    match name {
        [] => "\"\"".to_owned(),
        name if name.len() > 20 => {
            format!(
                "\"{}...{}\"({} bytes)",
                shown(&name[..2]),
                shown(&name[name.len() - 3..]),
                name.len()
            )
        }
        name => format!("\"{}\"", shown(name)),
    }
}
