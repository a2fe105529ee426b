//! Plays a conversation again without the proxy, each client in a session of its own, and compares.
//!
//! Differences that are right, by `docs/pooling.md`:
//!
//! - Without a token, or with a deposed one, a write is refused; PostgreSQL then gets a request that fails instead.
//! - A takeover ends the connections of lower tokens: an error, or the end of a client that keeps its connection.
//! - What a function has left, `currval`, and the process may be gone: a fresh session says the same.
//! - A statement that was parsed before a change of `DateStyle` and the like may be unknown.
//! - Server processes analyse their prepared statements again once one of them has made its schema for temporary
//!   objects, also under a later `DateStyle`. Through the proxy or directly it may have been there before.
//! - A setting with a dot that was reset is empty instead of NULL: [`looks`](super::looks) take them for equal.
//! - A client is ended (53400) if too many keep their server connections, and one that has left counts until it is
//!   reset.
//! - `pg_prepared_statements` lacks statements of the protocol that were not used there, and has some of one's own that
//!   were closed elsewhere.

use std::collections::BTreeSet;

use super::conversation::{Conversation, Cycle, Kind, Who, packet, token};
use super::looks;
use super::pooled::Event;
use super::replies::{row, same, same_but_for_dates, words};
use super::trial::Place;
use super::twin::Twin;
use crate::mediation::conversation::{Database, Message as Said};
use crate::mediation::twin::comparable;
use pgpalisade_test_servers::wire::{Message, errors, pretty};

#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub violations: Vec<String>,
    pub errors: Vec<String>,
    pub shares: bool,
}

#[derive(Debug)]
pub struct Judge<'a> {
    place: &'a mut Place,
    conversation: &'a Conversation,
    number: u64,
    twins: [Option<Twin>; 2],
    /// Tokens that each client has ever declared.
    declared: [BTreeSet<u64>; 2],
    /// The greatest of the conversation.
    greatest: u64,
    /// Through the proxy, and directly.
    notified: [[Vec<String>; 2]; 2],
    pids: [BTreeSet<String>; 2],
    /// Whether a client may have made temporary objects.
    has_temporary: bool,
    has_one_left: bool,
    verdict: Verdict,
}

/// Refusals by the fence, or by the mode that it sets.
fn is_refusal(sqlstate: &str) -> bool {
    sqlstate.starts_with("PF") || matches!(sqlstate, "25006" | "57P01" | "08007")
}

impl<'a> Judge<'a> {
    pub fn new(place: &'a mut Place, conversation: &'a Conversation, number: u64) -> Self {
        Self {
            place,
            conversation,
            number,
            twins: [None, None],
            declared: Default::default(),
            greatest: 0,
            notified: Default::default(),
            pids: Default::default(),
            has_temporary: false,
            has_one_left: false,
            verdict: Verdict::default(),
        }
    }

    pub fn judge(mut self, events: &[Event]) -> Verdict {
        self.greatest = self.greatest(events);
        let mut taken = Vec::new();
        for event in events {
            match event {
                Event::LoggedIn(who, replies) => self.log_in(*who, replies),
                Event::Said(who, cycles, replies) => self.compare(*who, cycles, replies),
                Event::Left(who) => {
                    self.has_one_left = true;
                    self.part(*who);
                }
                Event::TookOver(token, before) => taken.push((*token, before)),
                Event::Notified => self.place.notify_twin(),
                Event::Silent(who) => self.wrong(format!("{who:?} gets no answer")),
            }
        }
        for (token, before) in taken {
            let after = self.place.rows_below(token);
            if after != *before {
                self.wrong(format!(
                    "{after} rows below {token}, and {before} when it was taken"
                ));
            }
        }
        for who in Who::BOTH {
            self.part(who);
        }
        self.rows();
        for who in Who::BOTH {
            let [pooled, direct] = &self.notified[who as usize];
            let is_part = pooled.iter().all(|channel| direct.contains(channel));
            // The last one may not have arrived.
            if !is_part {
                self.wrong(format!(
                    "{who:?} is notified of {pooled:?}, directly {direct:?}"
                ));
            }
        }
        self.verdict.shares = !self.pids[0].is_disjoint(&self.pids[1]);
        self.verdict
    }

    fn greatest(&self, events: &[Event]) -> u64 {
        let of_clients = self
            .conversation
            .clients
            .iter()
            .filter_map(|client| client.token);
        let said = events.iter().flat_map(|event| match event {
            Event::Said(_, cycles, _) => &cycles[..],
            _ => &[],
        });
        let own = of_clients
            .chain(said.filter_map(Cycle::token))
            .map(|relative| token(relative, self.number));
        let taken = events.iter().filter_map(|event| match event {
            Event::TookOver(token, _) => Some(*token),
            _ => None,
        });
        own.chain(taken).max().unwrap_or_default()
    }

    fn wrong(&mut self, what: String) {
        self.verdict.violations.push(what);
    }

    /// Whether a token of this client may have become stale.
    fn is_deposed(&self, who: Who) -> bool {
        let least = self.declared[who as usize].first();
        least.is_some_and(|least| *least < self.greatest)
    }

    fn log_in(&mut self, who: Who, replies: &[Message]) {
        let startup = &self.conversation.clients[who as usize];
        let token = startup.token.map(|relative| token(relative, self.number));
        self.declared[who as usize].extend(token);
        if replies.last().is_none_or(|last| last.tag != b'Z') {
            let is_told = errors(replies).iter().all(|error| error == "PF001");
            if !(is_told && self.is_deposed(who)) {
                self.wrong(format!("{who:?} cannot log in:\n{}", pretty(replies)));
            }
            return;
        }
        let key = (Some(who), startup.parameters.clone());
        let wire = self.place.take_twin(&key);
        self.twins[who as usize] = Some(Twin::new(wire, token));
    }

    fn compare(&mut self, who: Who, cycles: &[Cycle], replies: &[Message]) {
        for relative in cycles.iter().filter_map(Cycle::token) {
            self.declared[who as usize].insert(token(relative, self.number));
        }
        let mut rest = replies;
        for cycle in cycles {
            if self.twins[who as usize].is_none() {
                return;
            }
            let end = rest.iter().position(|message| message.tag == b'Z');
            let Some(end) = end else {
                // Left before, or ended.
                if rest.iter().any(Message::is_closed) {
                    self.verdict.errors.extend(errors(rest));
                    let is_one_too_many = self.has_one_left && errors(rest) == ["53400"];
                    if !self.is_deposed(who) && !is_one_too_many {
                        self.wrong(format!("{who:?} is closed:\n{}", pretty(rest)));
                    }
                    self.part(who);
                }
                return;
            };
            let (own, later) = rest.split_at(end + 1);
            rest = later;
            let heard = self.without_notifications(who, own, 0);
            self.verdict.errors.extend(errors(&heard));
            self.has_temporary |= makes_temporary(cycle);
            if errors(&heard).iter().any(|error| is_refusal(error)) {
                self.refused(who, cycle, &heard);
            } else if errors(&heard) == ["26000"]
                && self.may_be_unknown(who, cycle)
                && cycle.is_extended()
            {
                // What follows in the cycle is skipped here, and changes nothing there.
                self.fail_too(who, cycle, &heard);
                self.align(who, &heard);
            } else {
                self.answered(who, cycle, &heard);
            }
            let startup = self.conversation.clients[who as usize].token;
            if let Some(twin) = &mut self.twins[who as usize] {
                twin.note(cycle, &heard, startup, self.number);
            }
        }
    }

    /// The request has failed, so it fails directly too.
    fn refused(&mut self, who: Who, cycle: &Cycle, heard: &[Message]) {
        let holds = self.twins[who as usize]
            .as_ref()
            .is_some_and(|twin| twin.token.is_some() || twin.local_token.is_some());
        if holds && !self.is_deposed(who) && !errors(heard).contains(&"PF003".to_owned()) {
            self.wrong(format!(
                "{who:?} holds a token, and gets\n{}",
                pretty(heard)
            ));
        }
        if cycle.is_extended() {
            self.fail_too(who, cycle, heard);
        } else if errors(heard).contains(&"25006".to_owned()) {
            // PostgreSQL has got it, and any Query ends the unnamed statement.
            self.ask(who, &Cycle::query(Kind::Plain, "refused"));
        }
        let is_lost = errors(heard)
            .iter()
            .any(|error| matches!(&**error, "PF001" | "57P01"));
        if let Some(twin) = &mut self.twins[who as usize] {
            twin.may_be_lost |= is_lost;
        }
        // Notifications come even if nothing was sent.
        self.ask(who, &Cycle::extended(Kind::Plain, []));
        self.align(who, heard);
    }

    /// Says directly what was answered before the error, and fails.
    fn fail_too(&mut self, who: Who, cycle: &Cycle, heard: &[Message]) {
        let is_done = |message: &&Message| matches!(message.tag, b'1'..=b'3' | b'C' | b'T' | b'n');
        let done = heard.iter().filter(is_done).count();
        self.fail_after(who, &cycle.messages[..done]);
    }

    /// Fails the direct transaction after these messages. A Query would end the unnamed statement.
    fn fail_after(&mut self, who: Who, done: &[Said]) {
        let wrong = Said::Parse(b"refused".to_vec(), "refused".into());
        let messages = done.iter().cloned().chain([wrong]);
        self.ask(who, &Cycle::extended(Kind::Plain, messages));
    }

    fn may_be_unknown(&self, who: Who, cycle: &Cycle) -> bool {
        let twin = self.twins[who as usize].as_ref();
        cycle.kind == Kind::Statement && twin.is_some_and(Twin::may_not_know)
    }

    fn answered(&mut self, who: Who, cycle: &Cycle, heard: &[Message]) {
        // A transaction that had failed before the takeover says nothing more: but the server has it no more, with
        // its savepoints, nor looks at the parameters of a Bind before it says that it has failed.
        let status = self.twins[who as usize].as_ref().map(|twin| twin.status);
        let is_lost = status == Some(b'E') && self.is_deposed(who);
        let direct = self.ask(who, cycle);
        let Some(twin) = &self.twins[who as usize] else {
            return;
        };
        let has_hidden = twin.has_hidden;
        let is_same = if self.has_temporary {
            same_but_for_dates
        } else {
            same
        };
        let agrees = match cycle.kind {
            Kind::Hidden => true,
            _ if (twin.may_be_lost || is_lost) && errors(heard) == ["3B001"] => true,
            _ if is_lost && errors(heard) == ["25P02"] && errors(&direct) == ["08P01"] => true,
            Kind::Pid => {
                self.pids[who as usize].insert(row(heard));
                true
            }
            Kind::Token if errors(heard).is_empty() => {
                let token = twin.local_token.or(twin.token);
                let token = token.map(|token| token.to_string());
                row(heard) == token.unwrap_or_default()
            }
            Kind::Random => self.is_own_random(who, &row(heard), &row(&direct)),
            Kind::Loose => self.is_between(who, cycle, heard, &direct),
            Kind::Look if has_hidden => self.is_between(who, cycle, heard, &direct),
            Kind::Statement if self.may_be_unknown(who, cycle) => {
                is_same(heard, &direct) || errors(heard) == ["26000"]
            }
            _ => same(heard, &direct),
        };
        if !agrees {
            let words = (words(heard), words(&direct));
            let more: Vec<_> = words.0.difference(&words.1).collect();
            let less: Vec<_> = words.1.difference(&words.0).collect();
            let said: Vec<_> = cycle.messages.iter().map(ToString::to_string).collect();
            self.wrong(format!(
                "{who:?} {}:\n{}directly:\n{}only here {more:?}, only directly {less:?}\n",
                said.join("  "),
                pretty(heard),
                pretty(&direct)
            ));
        }
        self.align(who, heard);
    }

    /// Whether all that was heard would be said directly, or in a fresh session.
    fn is_between(
        &mut self,
        who: Who,
        cycle: &Cycle,
        heard: &[Message],
        direct: &[Message],
    ) -> bool {
        let mut rest = &words(heard) - &words(direct);
        rest.remove(&who.says(looks::OWN_STATEMENT));
        rest.is_empty() || rest.is_subset(&words(&self.fresh(who, cycle)))
    }

    fn is_own_random(&self, who: Who, heard: &str, direct: &str) -> bool {
        let seeded = |number: &str| self.place.randoms.iter().any(|all| all.contains(number));
        let twin = self.twins[who as usize].as_ref();
        let may_differ = twin.is_some_and(|twin| twin.is_reseeded);
        heard == direct || (!seeded(heard) && (may_differ || !seeded(direct)))
    }

    /// Reply of a session that has never said anything else.
    fn fresh(&mut self, who: Who, cycle: &Cycle) -> Vec<Message> {
        let startup = &self.conversation.clients[who as usize];
        let key = (None, startup.parameters.clone());
        let mut wire = self.place.take_twin(&key);
        let replies = wire.run(&self.packet(cycle));
        self.place.keep_twin(key, wire);
        replies
    }

    fn part(&mut self, who: Who) {
        if let Some(twin) = self.twins[who as usize].take()
            && !twin.has_loaded
        {
            let startup = &self.conversation.clients[who as usize];
            let key = (Some(who), startup.parameters.clone());
            self.place.keep_twin(key, twin.wire);
        }
    }

    fn packet(&self, cycle: &Cycle) -> pgpalisade_test_servers::wire::Batch {
        let oid = |function: &str| self.place.world.oid(Database::Utf8, function);
        packet(std::slice::from_ref(cycle), self.number, &oid)
    }

    /// Says it directly.
    fn ask(&mut self, who: Who, cycle: &Cycle) -> Vec<Message> {
        let packet = self.packet(cycle);
        let Some(twin) = &mut self.twins[who as usize] else {
            return Vec::new();
        };
        let replies = twin.wire.run(&packet);
        if let Some(last) = replies.last() {
            twin.status = last.body.first().copied().unwrap_or_default();
        }
        self.without_notifications(who, &replies, 1)
    }

    fn without_notifications(
        &mut self,
        who: Who,
        replies: &[Message],
        from: usize,
    ) -> Vec<Message> {
        let (notified, mut rest): (Vec<_>, Vec<_>) =
            replies.iter().cloned().partition(|m| m.tag == b'A');
        // Of the mode that the fence sets.
        rest.retain(|message| !message.body.starts_with(b"default_transaction_read_only"));
        let channels = notified.iter().map(|message| comparable(message).1);
        self.notified[who as usize][from].extend(channels);
        rest
    }

    /// Brings the direct transaction into the state of the one through the proxy, after a difference that is right.
    fn align(&mut self, who: Who, heard: &[Message]) {
        let status = heard.last().and_then(|ready| ready.body.first()).copied();
        let twin = self.twins[who as usize].as_ref();
        let direct = twin.map(|twin| twin.status);
        // A BEGIN that was in flight when a takeover ended its connection: the transaction has failed.
        if twin.is_some_and(|twin| twin.may_be_lost) && (status, direct) == (Some(b'E'), Some(b'I'))
        {
            self.ask(who, &Cycle::query(Kind::Plain, "BEGIN"));
            self.fail_after(who, &[]);
            return;
        }
        match (status, direct) {
            (Some(b'E'), Some(b'T')) => self.fail_after(who, &[]),
            (Some(b'I'), Some(b'T' | b'E')) => {
                self.ask(who, &Cycle::query(Kind::Plain, "ROLLBACK"));
            }
            (status, direct) if status == direct => {}
            _ => self.wrong(format!("{who:?} is {status:?}, directly {direct:?}")),
        }
    }

    /// No row has a token that its writer has not declared.
    fn rows(&mut self) {
        for row in self.place.take_rows() {
            let [what, stamp] = &row[..] else {
                continue;
            };
            let writer = Who::BOTH.into_iter().find(|who| {
                let own = who.says("% ");
                what.strip_prefix(&own) == Some(&self.number.to_string())
            });
            let Some(writer) = writer else {
                continue;
            };
            let token = stamp.parse();
            if !token.is_ok_and(|token| self.declared[writer as usize].contains(&token)) {
                self.wrong(format!("{writer:?} wrote {row:?}"));
            }
        }
    }
}

fn makes_temporary(cycle: &Cycle) -> bool {
    let parts = ["TEMP ", "FUNCTION pg_temp", "public.leaves"];
    let mut texts = cycle.messages.iter().map(ToString::to_string);
    texts.any(|text| parts.into_iter().any(|part| text.contains(part)))
}
