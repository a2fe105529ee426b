//! Refusing a series of the extended protocol before any of it is sent.
//!
//! A refused Execute that follows a Parse and a Bind which the server has taken needs the server to undo them
//! ([`Refused::InPipeline`]). Where Parse or Bind, Describe, Execute and Sync have all arrived at an idle session, as
//! most drivers send them, nobody has to be asked: the client gets what the server would have said to a statement that
//! fails when it is executed, and the server is not touched.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use pgpalisade_policies::{Class, Verdict};

use super::Relay;
use super::requests::Frame;
use super::steps::{Judged, Refused, Step};
use crate::fence::Plan;
use crate::session::access::Standing;
use crate::session::names::EXCERPT_MAX;
use crate::wire::encode::Reply;
use crate::wire::frontend::{self, Target};
use crate::wire::header::{self, HEADER_LEN};

/// The first message of a series, which is looked at now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// A Parse of the unnamed statement.
    Parse,
    /// A Bind of the unnamed portal.
    Bind,
}

/// A series, from its first message to its Sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Series {
    pub first: First,
    /// Whether the portal is to be described.
    pub describes: Describes,
    /// Bytes of what follows its first message.
    pub behind: usize,
}

/// Whether a series holds a Describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Describes {
    No,
    Yes,
}

impl Series {
    /// What the server says to it before its Execute.
    pub(super) fn replies(self) -> impl Iterator<Item = Reply> {
        let parsed = (self.first == First::Parse).then_some(Reply::ParseComplete);
        let described = (self.describes == Describes::Yes).then_some(Reply::NoData);
        parsed
            .into_iter()
            .chain([Reply::BindComplete])
            .chain(described)
    }

    /// The series that these bytes complete. `None` where anything else is in them, or where not all of it is.
    fn read(first: First, behind: &[u8]) -> Option<Self> {
        let mut rest = behind;
        if first == First::Parse {
            let (portal, statement) = frontend::bind(take(&mut rest, b'B')?)?;
            if !portal.is_empty() || !statement.is_empty() {
                return None;
            }
        }
        let describes = match rest.first()? {
            b'D' => match frontend::target(b'D', take(&mut rest, b'D')?) {
                Ok(Target::Portal([])) => Describes::Yes,
                _ => return None,
            },
            _ => Describes::No,
        };
        let portal = frontend::execute(take(&mut rest, b'E')?).ok()?;
        let ends = portal.is_empty() && take(&mut rest, b'S')?.is_empty();
        ends.then_some(Self {
            first,
            describes,
            behind: behind.len() - rest.len(),
        })
    }
}

/// Takes the body of the next message, where it is one of this type and is there whole.
fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let header = header::parse(rest, frontend::body_max).ok()??;
    let (message, behind) = rest.split_at_checked(header.frame_len())?;
    *rest = behind;
    (header.tag == tag).then_some(message.get(HEADER_LEN..)?)
}

impl Relay {
    /// Whether a series that runs this could be refused with nothing of it sent.
    #[inline]
    pub(super) fn may_refuse_ahead(&self, verdict: &Verdict) -> bool {
        verdict.class() == Class::Write
            && !self.position.is_inside()
            && self.ledger.is_empty()
            && self.standing() == Standing::MayNotWrite
            && self.refusal_on_hold.is_none()
            && verdict.is_inert()
    }

    /// Refuses the series of a Bind that has arrived whole, where that is sure.
    #[inline]
    pub(super) fn refuse_bound(
        &mut self,
        portal: &[u8],
        statement: &[u8],
        frame: Frame<'_>,
    ) -> Option<Step> {
        let meaning = self.names.statement(statement)?;
        let sends_all = portal.is_empty() && frame.is_whole();
        if !sends_all || !self.may_refuse_ahead(meaning.verdict()?) {
            return None;
        }
        let meaning = meaning.clone();
        let judged = Judged {
            verdict: meaning.verdict()?,
            text: meaning.excerpt(),
        };
        self.refuse_ahead(First::Bind, &judged, frame.behind)
    }

    /// Refuses a series whose first message is at the front of the client's bytes. `None` says nothing.
    pub(super) fn refuse_ahead(
        &mut self,
        first: First,
        judged: &Judged<'_>,
        behind: &[u8],
    ) -> Option<Step> {
        let verdict = judged.verdict;
        if !self.may_refuse_ahead(verdict) {
            return None;
        }
        let series = Series::read(first, behind)?;
        if series.describes == Describes::Yes && !has_no_rows(verdict.kind(), judged.text) {
            return None;
        }
        let Plan::Refuse(rejection) = self.fence.plan(verdict, &self.situation()) else {
            return None;
        };
        self.judged_as(judged);
        Some(Step::Refuse(rejection, Refused::Series(series)))
    }
}

/// Whether a statement is sure to return no rows, so that NoData describes it.
fn has_no_rows(kind: &str, text: &[u8]) -> bool {
    let whole = text.len() < EXCERPT_MAX;
    let returning = b"returning";
    let mut words = text.windows(returning.len());
    whole
        && matches!(kind, "INSERT" | "UPDATE" | "DELETE")
        && !words.any(|word| word.eq_ignore_ascii_case(returning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len() + 4).unwrap();
        [&[tag], &len.to_be_bytes()[..], body].concat()
    }

    fn bind() -> Vec<u8> {
        message(b'B', b"\0\0\0\0\0\0\0\0")
    }

    fn execute() -> Vec<u8> {
        message(b'E', b"\0\0\0\0\0")
    }

    fn sync() -> Vec<u8> {
        message(b'S', b"")
    }

    #[track_caller]
    fn check(first: First, messages: &[Vec<u8>], expect: Option<(Describes, usize)>) {
        let expect = expect.map(|(describes, messages_of_it)| Series {
            first,
            describes,
            behind: messages.iter().take(messages_of_it).map(Vec::len).sum(),
        });
        assert_eq!(Series::read(first, &messages.concat()), expect);
    }

    #[test]
    fn a_series_is_all_or_nothing() {
        let describe = || message(b'D', b"P\0");
        let (parse, bound) = (First::Parse, First::Bind);
        check(bound, &[execute(), sync()], Some((Describes::No, 2)));
        check(
            bound,
            &[describe(), execute(), sync(), bind()],
            Some((Describes::Yes, 3)),
        );
        check(
            parse,
            &[bind(), execute(), sync()],
            Some((Describes::No, 3)),
        );
        let described = [bind(), describe(), execute(), sync(), sync()];
        check(parse, &described, Some((Describes::Yes, 4)));
        for other in [
            vec![],
            vec![execute()],
            vec![execute(), sync()],
            vec![bind(), execute()],
            vec![bind(), execute(), message(b'H', b"")],
            vec![bind(), execute(), execute(), sync()],
            vec![bind(), execute(), message(b'S', b"x")],
            vec![bind(), message(b'D', b"S\0"), execute(), sync()],
            vec![bind(), message(b'D', b"Pp\0"), execute(), sync()],
            vec![bind(), message(b'E', b"p\0\0\0\0\0"), sync()],
            vec![message(b'B', b"p\0\0\0\0\0\0\0\0"), execute(), sync()],
            vec![message(b'B', b"\0s\0\0\0\0\0\0\0"), execute(), sync()],
        ] {
            check(parse, &other, None);
        }
        let whole = [bind(), execute(), sync()].concat();
        for end in 0..whole.len() {
            assert_eq!(Series::read(parse, &whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn only_what_surely_returns_nothing_is_described() {
        assert!(has_no_rows("INSERT", b"INSERT INTO t VALUES (1)"));
        for (kind, text) in [
            ("INSERT", "INSERT INTO t VALUES (1) RETURNING id"),
            ("UPDATE", "update t set a = 1 ReTurning a"),
            ("SELECT", "SELECT nextval('s')"),
            ("EXPLAIN", "EXPLAIN ANALYZE INSERT INTO t VALUES (1)"),
        ] {
            assert!(!has_no_rows(kind, text.as_bytes()), "{text}");
        }
        let long = format!("INSERT INTO t VALUES ('{}')", "x".repeat(EXCERPT_MAX));
        assert!(!has_no_rows(
            "INSERT",
            crate::relay::judgement::excerpt(long.as_bytes())
        ));
    }
}
