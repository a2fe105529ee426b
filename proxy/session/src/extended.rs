//! Messages of the extended-query protocol, and what each needs before it may be sent.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::cell::RefCell;
use std::sync::Arc;

use pgpalisade_policies::scan;
use pgpalisade_policies::{Class, Leftover, Opaque, VerdictCache};

use super::Session;
use super::action::{Action, Prerequisite, Refused};
use super::frame::{Frame, NAMES_MAX, Uncollected};
use super::in_flight::{InFlight, Request};
use super::judgement::{Judged, excerpt};
use super::lending::Tenancy;
use super::lookup::{self, Unclear};
use super::name_change::NameChange;
use crate::fence::{Classified, Leave, Name, Pipeline, PreparedText};
use crate::wire::WireError;
use crate::wire::frontend::{self, FrontendTag, Target};
use crate::wire::header::Header;

impl Session {
    pub(super) fn on_parse(
        &mut self,
        frame: Frame<'_>,
        verdicts: &RefCell<VerdictCache>,
    ) -> Action {
        if self.collects(frame) {
            return Action::AwaitWhole;
        }
        let Some(parse) = parse_prefix(frame) else {
            return self.long_name(FrontendTag::Parse, frame);
        };
        // Of a client that shares its server connection, the text is kept.
        if self.is_lent() && !self.has_room_for_text(frame.body.len()) {
            return Action::Need(Prerequisite::Replies);
        }
        let (name, text) = &parse;
        // First, because what a text shows is sent last.
        if let Err(action) = self.occupy(name) {
            return action;
        }
        let found = match text {
            Ok(text) if name.is_empty() && self.fast_permit(frame.header, text).is_some() => {
                self.server.text_settings.on_run();
                Ok((PreparedText::Plain, Leave::ReadUnguarded))
            }
            _ => self.classify_parse(frame, parse, verdicts),
        };
        match found {
            Ok((meaning, leave)) => {
                if self.is_lent() {
                    self.server.texts_in_flight += frame.body.len();
                }
                let change = NameChange::set(Name::statement(name), meaning);
                self.pipelined(frame.header, Request::Parse, change, leave)
            }
            Err(action) => action,
        }
    }

    fn classify_parse(
        &mut self,
        frame: Frame<'_>,
        parse: ParsePrefix<'_>,
        verdicts: &RefCell<VerdictCache>,
    ) -> Result<(PreparedText, Leave), Action> {
        let (_, text) = parse;
        let verdict = self.verdict(text, verdicts).map_err(Action::Need)?;
        let judged = Judged {
            verdict: &verdict,
            text: text.unwrap_or_default(),
        };
        if verdict.has_controls()
            && let Some(action) = self.parse_named_again(&verdict, Request::Parse)
        {
            return Err(action);
        }
        let leave = self.before_parse(&judged)?;
        if let Some(prerequisite) = self.publish_first(&verdict) {
            return Err(Action::Need(prerequisite));
        }
        self.server.note_parse(&verdict);
        let keeps = verdict.class() == Class::Write;
        let excerpt = text.ok().filter(|_| keeps).map(|text| excerpt(text).into());
        let needs_parse = match (self.server.tenancy, text) {
            (Tenancy::ForLife, Ok(text)) => scan::needs_parse(text),
            // Only a session that keeps its server connection asks.
            _ => true,
        };
        let classified = Classified {
            verdict,
            excerpt,
            needs_parse,
            source: self.source_of(frame, parse),
        };
        Ok((PreparedText::Classified(Arc::new(classified)), leave))
    }

    pub(super) fn on_bind(&mut self, frame: Frame<'_>) -> Action {
        let Some((portal, statement)) = frontend::bind(frame.body) else {
            return self.long_name(FrontendTag::Bind, frame);
        };
        let name = Name::statement(statement);
        let meaning = match self.find_statement(name) {
            Ok(meaning) => meaning,
            Err(action) => return action,
        };
        match self.before_bind(name, &meaning, frame.body) {
            Ok(leave) => {
                // If a function has made it another statement, its reply tells before that is committed.
                self.client.doubts_name |= !name.is_unnamed() && self.unguarded().is_some();
                let change = NameChange::set(Name::portal(portal), meaning);
                self.pipelined(frame.header, Request::Bind, change, leave)
            }
            Err(action) => action,
        }
    }

    /// Text that the name of a portal stands for when the next message arrives.
    #[inline]
    fn find(&self, name: Name<'_>) -> Result<PreparedText, Unclear> {
        let found = lookup::find(&self.server.names, &self.server.ledger, name)?;
        Ok(found.cloned().unwrap_or_default())
    }

    #[inline(always)]
    fn pipelined(
        &mut self,
        message: Header,
        request: Request,
        name: NameChange,
        leave: Leave,
    ) -> Action {
        self.client.pipeline = Pipeline::Open;
        let entry = InFlight {
            name,
            leave,
            ..InFlight::client(request, None)
        };
        self.forward_harmless(message, Some(entry))
    }

    pub(super) fn on_target(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Action {
        if !frame.is_whole() {
            return Action::AwaitFront;
        }
        let Ok(target) = frontend::target(frame.header.tag, frame.body) else {
            return self.malformed(tag, frame);
        };
        if tag == FrontendTag::Close {
            let name = match target {
                Target::Statement(name) => Name::statement(name),
                Target::Portal(name) => Name::portal(name),
            };
            return self.pipelined(
                frame.header,
                Request::Close,
                NameChange::close(name),
                Leave::Read,
            );
        }
        match self.before_target(target) {
            Ok((name, leave)) => self.pipelined(frame.header, Request::Describe, name, leave),
            Err(action) => action,
        }
    }

    fn before_target(&mut self, target: Target<'_>) -> Result<(NameChange, Leave), Action> {
        let (meaning, leave) = match target {
            Target::Statement(name) => {
                let name = Name::statement(name);
                let meaning = self.find_statement(name)?;
                let leave = self.before_describe(name, &meaning)?;
                (meaning, leave)
            }
            Target::Portal(_) if self.server.tenancy == Tenancy::ForLife => {
                return Ok((NameChange::None, Leave::Read));
            }
            Target::Portal(name) => {
                let meaning = self.find(Name::portal(name)).unwrap_or_default();
                (meaning, Leave::Read)
            }
        };
        let source = meaning.source().cloned();
        Ok((source.map_or(NameChange::None, NameChange::Describe), leave))
    }

    pub(super) fn on_execute(&mut self, frame: Frame<'_>) -> Action {
        if !frame.is_whole() {
            return Action::AwaitFront;
        }
        let Ok(portal) = frontend::execute(frame.body) else {
            return self.malformed(FrontendTag::Execute, frame);
        };
        self.client.pipeline = Pipeline::Open;
        let portal = Name::portal(portal);
        if let Some(action) = self.fast_execute(frame.header, portal) {
            return action;
        }
        let Ok(meaning) = self.find(portal) else {
            return Action::Need(Prerequisite::Replies);
        };
        if matches!(meaning, PreparedText::MaySteer)
            && let Some(rejection) = self.client.fence.changes_by_name()
        {
            return self.refuse_once_answered(rejection, Refused::InPipeline, None);
        }
        match meaning.verdict() {
            Some(verdict) => {
                let judged = Judged {
                    verdict,
                    text: meaning.text(),
                };
                let action = self.decide(frame.header, &judged, Request::Execute);
                let is_sent = matches!(action, Action::Forward(_));
                self.client.settles |= is_sent && self.client.doubts_name;
                action
            }
            None => {
                let action = self.decide_effects(
                    frame.header,
                    &meaning.effects(),
                    Request::Execute,
                    Refused::InPipeline,
                );
                if matches!(action, Action::Forward(_)) && self.server.names.may_have_lost(portal) {
                    self.server.is_discarded = false;
                    self.server.keep(Leftover::Unread);
                }
                action
            }
        }
    }

    /// Fast path of nearly every Execute, like [`Session::fast_permit`] for a text.
    #[inline]
    fn fast_execute(&mut self, message: Header, portal: Name<'_>) -> Option<Action> {
        let (client, server) = (&self.client, &self.server);
        if server.tenancy != Tenancy::ForLife {
            return None;
        }
        let found = lookup::find(&server.names, &server.ledger, portal);
        let meaning = found.ok().flatten()?;
        let permit = client
            .fence
            .admit_execute(message, meaning, client.state.token())?;
        let mut entry = InFlight::client(Request::Execute, None);
        entry.is_plain = true;
        Some(self.forward(permit, Some(entry)))
    }

    /// Waits for the end of the names in a Parse or Bind, up to a limit.
    fn long_name(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Action {
        if frame.is_whole() {
            self.malformed(tag, frame)
        } else if frame.body.len() > NAMES_MAX + START_MIN {
            self.violates(WireError::Malformed(frame.header.tag))
        } else {
            Action::AwaitFront
        }
    }
}

/// Name and text of a Parse.
type ParsePrefix<'a> = (&'a [u8], Result<&'a [u8], Uncollected<'a>>);

/// Bytes of a text that are enough for its first word, mostly.
const START_MIN: usize = 1024;

/// Splits a Parse; `None` if the name has not ended, or too little of a long text is here.
fn parse_prefix(frame: Frame<'_>) -> Option<ParsePrefix<'_>> {
    match frontend::parse(frame.body) {
        Ok((name, text)) => Some((name, Ok(text))),
        Err(_) => {
            let end = frame.body.iter().position(|&byte| byte == 0)?;
            let start = frame.body.get(end + 1..).unwrap_or_default();
            if !frame.is_whole() && start.len() < START_MIN {
                return None;
            }
            let text = if frame.is_whole() {
                let why = Opaque::Nul;
                Uncollected { why, start }
            } else {
                frame.uncollected(start)
            };
            Some((frame.body.get(..end)?, Err(text)))
        }
    }
}
