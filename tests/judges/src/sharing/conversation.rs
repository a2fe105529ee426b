//! Turns of two clients, as data.

use std::fmt;

use crate::mediation::conversation::{Message, with_tokens};
use pgpalisade_test_servers::wire::Batch;

#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub clients: [Startup; 2],
    /// Number of server connections.
    pub backends: usize,
    /// Way in which a client gives up the connection that the other one waits for.
    pub yields: Yields,
    pub turns: Vec<Turn>,
}

/// Tokens are relative, as in [`with_tokens`].
#[derive(Clone, Debug, PartialEq)]
pub struct Startup {
    pub token: Option<&'static str>,
    pub parameters: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// By DISCARD ALL.
    Discards,
    /// By its end.
    Leaves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    A,
    B,
}

impl Who {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Text with the client's own letter for `%`, and its number for `#`.
    pub fn says(self, text: &str) -> String {
        let (letter, number) = match self {
            Self::A => ("a", "123"),
            Self::B => ("b", "124"),
        };
        text.replace('%', letter).replace('#', number)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// One packet, which is answered before the next turn.
    Says(Who, Vec<Cycle>),
    /// One packet, after which the other client goes on at once.
    Sends(Who, Vec<Cycle>),
    /// Closes its socket. It logs in again for its next turn.
    Leaves(Who),
    /// Another session declares this token of scope `default`.
    TakesOver(&'static str),
    /// Another session notifies all channels.
    Notifies,
}

/// Messages up to the one that ReadyForQuery answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycle {
    pub kind: Kind,
    pub messages: Vec<Message>,
}

/// Effect of a request, by which other replies than the direct ones may be right. `docs/pooling.md` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No other ones.
    Plain,
    /// Leaves something unseen, which is gone with the next reset.
    Hidden,
    /// Changes a setting by which PostgreSQL reads texts: statements that were parsed before may be unknown after it.
    Unsettling,
    /// Uses such a statement.
    Statement,
    /// Declares a token for the session, or none.
    Declares(Option<&'static str>),
    /// Declares a token for the transaction.
    DeclaresLocally(&'static str),
    /// DISCARD ALL
    Discards,
    /// LOAD
    Loads,
    /// RESET ALL
    Resets,
    /// Shows also what was left unseen.
    Look,
    /// Shows what belongs to the server connection.
    Loose,
    Random,
    Token,
    Pid,
}

impl Cycle {
    pub fn query(kind: Kind, sql: impl Into<Vec<u8>>) -> Self {
        let messages = vec![Message::Query(vec![sql.into()])];
        Self { kind, messages }
    }

    pub fn extended(kind: Kind, messages: impl IntoIterator<Item = Message>) -> Self {
        let messages = messages.into_iter().chain([Message::Sync]).collect();
        Self { kind, messages }
    }
    /// The token that it declares.
    pub fn token(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Declares(token) => token,
            Kind::DeclaresLocally(token) => Some(token),
            _ => None,
        }
    }

    pub fn is_extended(&self) -> bool {
        self.messages.len() > 1
    }
}

/// One packet.
pub fn packet(cycles: &[Cycle], number: u64, oid: &dyn Fn(&str) -> u32) -> Batch {
    let messages = cycles.iter().flat_map(|cycle| &cycle.messages);
    messages.fold(Batch::new(), |batch, message| {
        message.onto(batch, number, oid)
    })
}

/// The token of this conversation.
pub fn token(relative: &str, number: u64) -> u64 {
    let told = with_tokens(relative.as_bytes(), number);
    let told = String::from_utf8_lossy(&told);
    told.parse().expect("a token is a number")
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} server connections; {:?}", self.backends, self.yields)?;
        for (who, startup) in Who::BOTH.iter().zip(&self.clients) {
            let token = startup.token.unwrap_or("none");
            write!(f, "\n{who:?} token={token} {:?}", startup.parameters)?;
        }
        for turn in &self.turns {
            let (who, cycles, end) = match turn {
                Turn::Says(who, cycles) => (who, cycles, "answered"),
                Turn::Sends(who, cycles) => (who, cycles, "sent"),
                other => {
                    write!(f, "\n{other:?}")?;
                    continue;
                }
            };
            for Cycle { kind, messages } in cycles {
                write!(f, "\n{who:?}")?;
                for message in messages {
                    write!(f, "  {message}")?;
                }
                write!(f, "  ({kind:?})")?;
            }
            write!(f, "  {end}")?;
        }
        Ok(())
    }
}
