//! Refusals of requests that would have written nothing.
//!
//! Only the first refused request of a conversation is checked. The conversation up to its end runs again directly on
//! a twin of the database. If it does nothing there that its session may not do, the refusal was needless.
//!
//! Limits: a text of several statements, and a pipeline refused at its Parse or Bind, count as one request. A request
//! that fails on the twin has written nothing, even if it was meant to. Statements that switch read-only mode off
//! write nothing themselves, and are refused with reason: see `changes_access`.

use super::conversation::{Conversation, Message, Step};
use super::runner::Heard;

#[derive(Clone, Debug)]
pub struct Refusal {
    /// SQLSTATE and reason, without the details that vary within a kind.
    pub reason: String,
    /// PostgreSQL would have written nothing.
    pub needless: bool,
    pub what: String,
}

/// Conversation up to the end of its first refused request, and the refusal.
pub fn first_refusal(
    conversation: &Conversation,
    heard: &Heard,
) -> Option<(Conversation, Refused)> {
    let told = heard
        .errors
        .iter()
        .find(|told| told.sqlstate.starts_with("PF") || told.sqlstate == "25006")?;
    let Some(Step::Say(refused)) = conversation.steps.get(told.step) else {
        return None;
    };
    let mut cut = conversation.clone();
    cut.steps.truncate(end_of_request(&cut.steps, told.step));
    let refused = Refused {
        reason: format!("{} {}", told.sqlstate, kind_of(&told.words)),
        what: refused.to_string(),
        changes_access: changes_access(&cut.steps[told.step..]),
    };
    Some((cut, refused))
}

#[derive(Debug)]
pub struct Refused {
    reason: String,
    what: String,
    changes_access: bool,
}

impl Refused {
    /// Completes the refusal, once it is known whether PostgreSQL would have written.
    pub fn judged(self, wrote: bool) -> Refusal {
        Refusal {
            reason: self.reason,
            needless: !wrote && !self.changes_access,
            what: self.what,
        }
    }
}

/// End of the request of a message. A preparing message belongs to its whole pipeline; any other is a request alone.
fn end_of_request(steps: &[Step], at: usize) -> usize {
    let prepares = matches!(
        steps.get(at),
        Some(Step::Say(
            Message::Parse(..) | Message::Bind(..) | Message::Describe(..)
        ))
    );
    if !prepares {
        return at + 1;
    }
    let sync = steps[at..]
        .iter()
        .position(|step| matches!(step, Step::Say(Message::Sync)));
    sync.map_or(steps.len(), |sync| at + sync)
}

/// Whether a request changes read-only mode or a token, which no session may change freely.
fn changes_access(steps: &[Step]) -> bool {
    steps.iter().any(|step| {
        let text = match step {
            Step::Say(Message::Query(parts)) => parts.join(&b"; "[..]),
            Step::Say(Message::Parse(_, sql)) => sql.clone(),
            Step::Say(Message::Bind(_, _, values)) => values.concat(),
            _ => return false,
        };
        let text = String::from_utf8_lossy(&text).to_uppercase();
        ["READ_ONLY", "READ WRITE", "FENCING", "TRANSACTION_READ"]
            .iter()
            .any(|word| text.contains(word))
    })
}

/// Words of a refusal without names and numbers.
fn kind_of(words: &str) -> String {
    let reason = words.split("not a read: ").nth(1).unwrap_or(words);
    let mut kind = String::new();
    let mut quoted = false;
    for letter in reason.chars().take(140) {
        match letter {
            '"' => quoted = !quoted,
            _ if quoted || letter.is_ascii_digit() => {}
            letter => kind.push(letter),
        }
    }
    kind
}
