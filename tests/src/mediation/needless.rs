//! Refusals of what would have written nothing.
//!
//! Of a conversation the first refused request is looked at: everything in front of it has passed the proxy and has
//! written nothing. The conversation up to that request runs once more straight on a twin of the database, where
//! nothing stands in between; if it does nothing there that its session may not, the refusal was needless.
//!
//! Limits: later refusals of a conversation are not looked at. A text of several statements, and a pipeline that is
//! refused at its Parse or Bind, is one request up to its end. A request that fails on the twin has written nothing,
//! also where it was meant to. What lifts read-only mode writes nothing by itself, and is refused with reason: see
//! `is_a_lift`.

use super::conversation::{Conversation, Message, Step};
use super::runner::Heard;

/// A refusal, looked at.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// SQLSTATE and reason, without what differs between two of a kind.
    pub reason: String,
    /// PostgreSQL would have written nothing.
    pub needless: bool,
    /// What was refused.
    pub what: String,
}

/// A conversation up to the end of its first refused request, if there is one, and the refusal.
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
        lifts: is_a_lift(&cut.steps[told.step..]),
    };
    Some((cut, refused))
}

/// A refusal that is to be looked at.
#[derive(Debug)]
pub struct Refused {
    reason: String,
    what: String,
    lifts: bool,
}

impl Refused {
    /// Now that it is known whether PostgreSQL would have written.
    pub fn judged(self, wrote: bool) -> Refusal {
        Refusal {
            reason: self.reason,
            needless: !wrote && !self.lifts,
            what: self.what,
        }
    }
}

/// Where the request ends that a message belongs to: with itself, or, where it prepares, with its pipeline.
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

/// Whether it is about read-only mode or a token, which no session may change as it likes.
fn is_a_lift(steps: &[Step]) -> bool {
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

/// The words of a refusal without names and numbers.
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
