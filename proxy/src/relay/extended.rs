//! Messages of the extended-query protocol: what each of them needs before it may be sent.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::sync::Arc;

use pgpalisade_policies::scan::{self, NeedsParse};
use pgpalisade_policies::{Class, Opaque};

use super::Relay;
use super::judgement::{excerpt, shows_settings};
use super::requests::{Frame, NAMES_MAX};
use super::steps::{Forward, Judged, Refused, Step};
use crate::session::Pipeline;
use crate::session::in_flight::{InFlight, Leave, Request};
use crate::session::names::{self, Classified, Meaning, Name, NameChange, Unclear};
use crate::wire::WireError;
use crate::wire::frontend::{self, FrontendTag, Target};

impl Relay {
    pub(super) fn look_at_parse(&mut self, frame: Frame<'_>) -> Step {
        if self.collects(frame) {
            return Step::NeedBytes;
        }
        let Some((name, text)) = parse_prefix(frame) else {
            return self.long_name(FrontendTag::Parse, frame);
        };
        let mut leave = Leave::ReadUnguarded;
        let meaning = match text {
            Ok(text) if name.is_empty() && self.fast_permit(text).is_some() => {
                self.text_settings.on_run();
                Meaning::Plain
            }
            text => {
                let verdict = match self.verdict(text) {
                    Ok(verdict) => verdict,
                    Err(step) => return step,
                };
                if shows_settings(&verdict)
                    && let Some(step) = self.publish_first()
                {
                    return step;
                }
                self.shown.published = None;
                let judged = Judged {
                    verdict: &verdict,
                    text: text.unwrap_or_default(),
                };
                leave = match self.before_parse(&judged) {
                    Ok(leave) => leave,
                    Err(step) => return step,
                };
                let keeps = verdict.class() == Class::Write;
                let excerpt = text.ok().filter(|_| keeps).map(|text| excerpt(text).into());
                Meaning::Classified(Arc::new(Classified {
                    verdict,
                    excerpt,
                    scan: text.map_or(NeedsParse::Yes, scan::needs_parse),
                }))
            }
        };
        let change = NameChange::set(Name::statement(name), meaning);
        self.pipelined(FrontendTag::Parse, Request::Parse, change, leave)
    }

    pub(super) fn look_at_bind(&mut self, frame: Frame<'_>) -> Step {
        let Some((portal, statement)) = frontend::bind(frame.body) else {
            return self.long_name(FrontendTag::Bind, frame);
        };
        let Ok(meaning) = self.find(Name::statement(statement)) else {
            return Step::AwaitReplies;
        };
        match self.before_bind(&meaning, frame.body) {
            Ok(leave) => {
                let change = NameChange::set(Name::portal(portal), meaning);
                self.pipelined(FrontendTag::Bind, Request::Bind, change, leave)
            }
            Err(step) => step,
        }
    }

    /// What a name stands for where the next message arrives.
    #[inline]
    fn find(&self, name: Name<'_>) -> Result<Meaning, Unclear> {
        let found = names::find(&self.names, &self.ledger, name)?;
        Ok(found.cloned().unwrap_or_default())
    }

    fn pipelined(
        &mut self,
        tag: FrontendTag,
        request: Request,
        change: NameChange,
        leave: Leave,
    ) -> Step {
        self.position.pipeline = Pipeline::Open;
        let mut step = self.harmless(tag, Some(request));
        if let Step::Forward(Forward {
            entry: Some(entry), ..
        }) = &mut step
        {
            entry.name = change;
            entry.leave = leave;
        }
        step
    }

    pub(super) fn look_at_target(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Step {
        if !frame.is_whole() {
            return Step::NeedBytes;
        }
        let Ok(target) = frontend::target(frame.header.tag, frame.body) else {
            return self.malformed(tag);
        };
        if tag == FrontendTag::Close {
            let name = match target {
                Target::Statement(name) => Name::statement(name),
                Target::Portal(name) => Name::portal(name),
            };
            return self.pipelined(tag, Request::Close, NameChange::close(name), Leave::Read);
        }
        let leave = match target {
            Target::Portal(_) => Ok(Leave::Read),
            Target::Statement(name) => match self.find(Name::statement(name)) {
                Ok(meaning) => self.before_describe(&meaning),
                Err(Unclear) => Err(Step::AwaitReplies),
            },
        };
        match leave {
            Ok(leave) => self.pipelined(tag, Request::Describe, NameChange::None, leave),
            Err(step) => step,
        }
    }

    pub(super) fn look_at_execute(&mut self, frame: Frame<'_>) -> Step {
        if !frame.is_whole() {
            return Step::NeedBytes;
        }
        let Ok(portal) = frontend::execute(frame.body) else {
            return self.malformed(FrontendTag::Execute);
        };
        self.position.pipeline = Pipeline::Open;
        let portal = Name::portal(portal);
        if let Some(step) = self.fast_execute(portal) {
            return step;
        }
        let Ok(meaning) = self.find(portal) else {
            return Step::AwaitReplies;
        };
        if matches!(meaning, Meaning::MaySteer)
            && let Some(rejection) = self.fence.changes_by_name()
        {
            return match self.ledger.is_empty() {
                true => Step::Refuse(rejection, Refused::InPipeline),
                false => Step::AwaitReplies,
            };
        }
        match meaning.verdict() {
            Some(verdict) => self.decide(
                &Judged {
                    verdict,
                    text: meaning.excerpt(),
                },
                Request::Execute,
            ),
            None => self.decide_effects(&meaning.effects(), Request::Execute, Refused::InPipeline),
        }
    }

    /// The way of nearly every Execute: as [`Relay::fast_permit`] for a text.
    #[inline]
    fn fast_execute(&mut self, portal: Name<'_>) -> Option<Step> {
        let meaning = names::find(&self.names, &self.ledger, portal)
            .ok()
            .flatten()
            .filter(|meaning| meaning.is_plain())?;
        let permit = self.permit_for_any()?;
        self.guard = self.guard_after(meaning);
        self.search_path.forget();
        let entry = InFlight::client(Request::Execute, None);
        Some(Step::Forward(Forward::plain(permit, Some(entry))))
    }

    /// A message that PostgreSQL refuses for its layout: it says so itself, in a pipeline as an error in it.
    pub(super) fn malformed(&mut self, tag: FrontendTag) -> Step {
        let request = match tag {
            FrontendTag::Query => Request::MalformedQuery,
            _ => Request::Malformed,
        };
        self.position.pipeline = match request.ends_cycle() {
            true => Pipeline::Closed,
            false => Pipeline::Open,
        };
        let entry = InFlight::client(request, None);
        match self.fence.admit_malformed(tag) {
            Some(permit) => Step::Forward(Forward::plain(permit, Some(entry))),
            None => Step::Broken(WireError::UnknownFrontendTag(0)),
        }
    }

    /// A Parse or Bind whose names have not ended.
    fn long_name(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Step {
        match frame.is_whole() {
            true => self.malformed(tag),
            false if frame.body.len() > NAMES_MAX => {
                Step::Broken(WireError::Malformed(frame.header.tag))
            }
            false => Step::NeedBytes,
        }
    }
}

/// Name and text of a Parse.
type ParsePrefix<'a> = (&'a [u8], Result<&'a [u8], Opaque>);

/// Name and text of a Parse; `None` where the name has not ended.
fn parse_prefix(frame: Frame<'_>) -> Option<ParsePrefix<'_>> {
    match frontend::parse(frame.body) {
        Ok((name, text)) => Some((name, Ok(text))),
        Err(_) => {
            let end = frame.body.iter().position(|&byte| byte == 0)?;
            let why = if frame.is_whole() {
                Opaque::Nul
            } else {
                frame.why_not_collected()
            };
            Some((frame.body.get(..end)?, Err(why)))
        }
    }
}
