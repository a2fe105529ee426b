//! Messages from the client: what each of them needs before it may be sent.

use pgpalisade_policies::scan::{self, NeedsParse};
use pgpalisade_policies::{Category, Class, Effects, MAX_PARSED, MAX_PARSED_INLINE, Opaque};

use super::ahead::First;
use super::judgement::{excerpt, shows_settings};
use super::progress::Message;
use super::steps::{Forward, Judged, Refused, Step, Then};
use super::{End, Front, Gate, Relay};
use crate::fence::{Basis, Guard, Wrote};
use crate::rejection_log::Enforcement;
use crate::session::Pipeline;
use crate::session::ledger::{InFlight, NameChange, Request};
use crate::session::names::{Meaning, Noted};
use crate::wire::WireError;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag, Target};
use crate::wire::header::{self, HEADER_LEN, Header};

/// A message that carries a text is collected up to this size: a text in it can be classified at once. The slack is
/// for names and parameter types.
const LOOKED_AT_MAX: usize = MAX_PARSED_INLINE + NAMES_MAX;

/// Up to this size where the session may not just send it; what is longer is not parsed anyway.
const COLLECTED_MAX: usize = MAX_PARSED + NAMES_MAX;

/// Names of statements and portals must end within this many bytes of their message.
const NAMES_MAX: usize = 16 * 1024;

/// The message at the front of the client's bytes, as far as it has arrived.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    header: Header,
    body: &'a [u8],
    /// What has arrived behind it.
    pub(super) behind: &'a [u8],
}

impl Frame<'_> {
    pub(super) const fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_len
    }

    const fn why_not_collected(&self) -> Opaque {
        match self.header.body_len <= COLLECTED_MAX {
            true => Opaque::NoRoom,
            false => Opaque::TooLong,
        }
    }
}

impl Relay {
    /// Looks at what the client has sent and says how many bytes are done with.
    pub(super) fn on_client_bytes(&mut self, bytes: &[u8]) -> Result<usize, End> {
        self.follow_policy();
        // Everything before `at` is decided; everything before `sent` has been passed on or dropped.
        let mut at = 0;
        let mut sent = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let dropped = self.client_discard.min(rest.len());
            if dropped > 0 {
                self.client_discard -= dropped;
                at += dropped;
                sent = at;
                continue;
            }
            // `admitted` counts what is decided and not passed on, here or still to arrive.
            let to_come = self
                .upstream
                .admitted()
                .saturating_sub(at - sent)
                .min(rest.len());
            if to_come > 0 {
                at += to_come;
                continue;
            }
            if !matches!(self.gate, Gate::Open) {
                break;
            }
            let header = match header::parse(rest, frontend::body_max) {
                Ok(None) => break,
                Ok(Some(header)) => header,
                Err(error) => {
                    self.pass_on(bytes, &mut sent, at)?;
                    self.on_wire_error(error);
                    break;
                }
            };
            let frame_len = header.frame_len();
            let step = match std::mem::take(&mut self.drop_front) {
                true => Step::Discard,
                false => self.look_at(header, rest),
            };
            match step {
                Step::Forward(forward) => {
                    self.front = Front::Unknown;
                    self.classified = None;
                    self.collecting.done();
                    // Another policy may let pass what was to be refused.
                    self.refusal_on_hold = None;
                    at += frame_len.min(rest.len());
                    if self.forward(forward, frame_len) == Then::Settle {
                        // The message itself goes out before the request for its reply.
                        self.pass_on(bytes, &mut sent, at)?;
                        self.await_replies();
                    }
                    continue;
                }
                Step::NeedBytes => break,
                _ => {}
            }
            // What was decided before goes out first.
            self.pass_on(bytes, &mut sent, at)?;
            let dropped = frame_len + step.behind();
            if self.take(step)? == Message::Dropped {
                self.front = Front::Unknown;
                self.classified = None;
                self.collecting.done();
                self.client_discard = dropped;
            }
        }
        self.pass_on(bytes, &mut sent, at)?;
        Ok(sent)
    }

    fn pass_on(&mut self, bytes: &[u8], sent: &mut usize, at: usize) -> Result<(), End> {
        let ready = bytes.get(*sent..at).unwrap_or_default();
        *sent = at;
        if ready.is_empty() {
            return Ok(());
        }
        // A write that fails is no end yet: the server may have said why, and that is read first.
        if let Err(error) = self.upstream.forward(ready) {
            tracing::debug!(%error, "writing to the server");
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                return Err(End::ServerSocket(error));
            }
        }
        Ok(())
    }

    fn forward(&mut self, forward: Forward, frame_len: usize) -> Then {
        let Forward {
            permit,
            entry,
            then,
            observed,
        } = forward;
        if matches!(permit.basis(), Basis::Token | Basis::Exempt) {
            self.wrote = Wrote::Yes;
        }
        if let Some(rejection) = observed {
            self.record(&rejection, Enforcement::Observed);
        }
        self.upstream.admit(permit, frame_len);
        if let Some(entry) = entry {
            self.ledger.push(entry);
        }
        then
    }

    /// Looks at one message. Changes nothing but what later looks at the same message rely on.
    fn look_at(&mut self, header: Header, bytes: &[u8]) -> Step {
        let body = bytes
            .get(HEADER_LEN..bytes.len().min(header.frame_len()))
            .unwrap_or_default();
        let behind = bytes.get(header.frame_len()..).unwrap_or_default();
        let frame = Frame {
            header,
            body,
            behind,
        };
        let tag = match FrontendTag::from_byte(header.tag) {
            Ok(tag) => tag,
            Err(error) => return Step::Broken(error),
        };
        if self.ledger.is_skipping() && !matches!(tag, FrontendTag::Sync | FrontendTag::Terminate) {
            return Step::Discard;
        }
        if let Some(step) = self.adjust_first(tag) {
            return step;
        }
        match tag {
            FrontendTag::Query => self.look_at_query(frame),
            FrontendTag::Parse => self.look_at_parse(frame),
            FrontendTag::Bind => self.look_at_bind(frame),
            FrontendTag::Execute => self.look_at_execute(frame),
            FrontendTag::Describe | FrontendTag::Close => self.look_at_target(tag, frame),
            FrontendTag::Sync => self.look_at_sync(),
            FrontendTag::Flush => self.harmless(tag, None),
            FrontendTag::FunctionCall => self.look_at_function_call(),
            FrontendTag::CopyData | FrontendTag::CopyDone => self.look_at_copy_data(tag),
            FrontendTag::CopyFail => self.harmless(tag, Some(Request::CopyEnd)),
            FrontendTag::Terminate => Step::Terminate,
            FrontendTag::Password => Step::Broken(WireError::UnknownFrontendTag(header.tag)),
        }
    }

    fn harmless(&self, tag: FrontendTag, request: Option<Request>) -> Step {
        let entry = request.map(|request| InFlight::client(request, None));
        match self.fence.admit_harmless(tag) {
            Some(permit) => Step::Forward(Forward::plain(permit, entry)),
            None => Step::Broken(WireError::UnknownFrontendTag(0)),
        }
    }

    /// Whether the rest of a message with a text is waited for. A session that may send whatever it likes does not
    /// wait for a long one.
    fn collects(&mut self, frame: Frame<'_>) -> bool {
        let len = frame.header.body_len;
        let free = || self.fence.admit_any(self.settings.token()).is_some();
        let wanted =
            !frame.is_whole() && (len <= LOOKED_AT_MAX || (len <= COLLECTED_MAX && !free()));
        let (budget, timers) = (&self.worker.collected, &self.worker.timers);
        wanted && self.collecting.may_wait(len, budget, timers)
    }

    fn look_at_query(&mut self, frame: Frame<'_>) -> Step {
        if self.collects(frame) {
            return Step::NeedBytes;
        }
        let text = match frame.is_whole() {
            true => frontend::query(frame.body).map_err(|_| Opaque::Nul),
            false => Err(frame.why_not_collected()),
        };
        if let Ok(text) = text
            && let Some(permit) = self.fast_permit(text)
        {
            self.names.on_simple_query();
            self.search_path.forget();
            return Step::Forward(Forward::plain(
                permit,
                Some(InFlight::client(Request::Query, None)),
            ));
        }
        let verdict = match self.verdict(text) {
            Ok(verdict) => verdict,
            Err(step) => return step,
        };
        let excerpt = text.unwrap_or(frame.body);
        let judged = Judged {
            verdict: &verdict,
            text: excerpt,
        };
        let step = self.decide(&judged, Request::Query);
        if matches!(step, Step::Forward(_)) {
            self.names.on_simple_query();
            // A simple Query ends the transaction of a pipeline, with or without a Sync.
            self.position.pipeline = Pipeline::Closed;
            self.guard = Guard::Sure;
        }
        step
    }

    fn look_at_parse(&mut self, frame: Frame<'_>) -> Step {
        if self.collects(frame) {
            return Step::NeedBytes;
        }
        let Some((name, text)) = parse_prefix(frame) else {
            return long_name(frame);
        };
        // Whether the name is free, the replies to a Close or an earlier Parse will tell.
        if self.names.has_statement(name) && !self.ledger.is_empty() {
            return Step::AwaitReplies;
        }
        let meaning = match text {
            Ok(text) if name.is_empty() && self.fast_permit(text).is_some() => Meaning::Plain,
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
                if name.is_empty()
                    && let Some(step) = self.refuse_ahead(First::Parse, &judged, frame.behind)
                {
                    return step;
                }
                if let Some(step) = self.before_parse(&judged) {
                    return step;
                }
                let keeps = verdict.class() == Class::Write;
                let excerpt = text.ok().filter(|_| keeps).map(|text| excerpt(text).into());
                Meaning::Classified {
                    verdict,
                    excerpt,
                    scan: text.map_or(NeedsParse::Yes, scan::needs_parse),
                }
            }
        };
        let change = match self.names.prepare(name, meaning) {
            Noted::New => Some(NameChange::Prepare(name.into())),
            Noted::No => None,
        };
        self.pipelined(FrontendTag::Parse, Request::Parse, change)
    }

    fn look_at_bind(&mut self, frame: Frame<'_>) -> Step {
        match frontend::bind(frame.body) {
            Some((portal, _)) if self.names.has_portal(portal) && !self.ledger.is_empty() => {
                return Step::AwaitReplies;
            }
            Some((portal, statement)) => {
                if let Some(step) = self.refuse_bound(portal, statement, frame) {
                    return step;
                }
                if let Some(step) = self.before_bind(statement, frame.body) {
                    return step;
                }
                self.names.bind(portal, statement);
            }
            None if frame.is_whole() => return Step::Broken(WireError::Malformed(b'B')),
            None => return long_name(frame),
        }
        self.pipelined(FrontendTag::Bind, Request::Bind, None)
    }

    fn pipelined(
        &mut self,
        tag: FrontendTag,
        request: Request,
        change: Option<NameChange>,
    ) -> Step {
        self.position.pipeline = Pipeline::Open;
        let mut step = self.harmless(tag, Some(request));
        if let Step::Forward(Forward {
            entry: Some(entry), ..
        }) = &mut step
        {
            entry.name = change.map(Box::new);
        }
        step
    }

    fn look_at_target(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Step {
        if !frame.is_whole() {
            return Step::NeedBytes;
        }
        let target = match frontend::target(frame.header.tag, frame.body) {
            Ok(target) => target,
            Err(error) => return Step::Broken(error),
        };
        if tag == FrontendTag::Describe {
            if let Target::Statement(name) = target
                && let Some(step) = self.before_describe(name)
            {
                return step;
            }
            return self.pipelined(tag, Request::Describe, None);
        }
        // What is not known now, this Close does not close: a later Parse may come before its reply.
        let change = match target {
            Target::Statement(name) if self.names.has_statement(name) => {
                Some(NameChange::CloseStatement(name.into()))
            }
            Target::Portal(name) if self.names.has_portal(name) => {
                Some(NameChange::ClosePortal(name.into()))
            }
            Target::Statement(_) | Target::Portal(_) => None,
        };
        self.pipelined(tag, Request::Close, change)
    }

    fn look_at_execute(&mut self, frame: Frame<'_>) -> Step {
        if !frame.is_whole() {
            return Step::NeedBytes;
        }
        let portal = match frontend::execute(frame.body) {
            Ok(portal) => portal,
            Err(error) => return Step::Broken(error),
        };
        self.position.pipeline = Pipeline::Open;
        if let Some(step) = self.fast_execute(portal) {
            return step;
        }
        let meaning = self.names.portal(portal).cloned().unwrap_or_default();
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
    fn fast_execute(&mut self, portal: &[u8]) -> Option<Step> {
        let meaning = self
            .names
            .portal(portal)
            .filter(|meaning| meaning.is_plain())?;
        let permit = self.permit_for_any()?;
        self.guard = self.guard_after(meaning);
        self.search_path.forget();
        let entry = InFlight::client(Request::Execute, None);
        Some(Step::Forward(Forward::plain(permit, Some(entry))))
    }

    fn look_at_function_call(&mut self) -> Step {
        // It can call any function by its number: PostgreSQL's documentation calls it obsolete.
        let effects = Effects::unknown(Some(Category::FunctionCall));
        self.decide_effects(&effects, Request::FunctionCall, Refused::Whole)
    }

    fn look_at_sync(&mut self) -> Step {
        let outside = self.position.status == TransactionStatus::Idle;
        self.position.pipeline = Pipeline::Closed;
        self.guard = Guard::Sure;
        let mut step = self.harmless(FrontendTag::Sync, Some(Request::Sync));
        if let Step::Forward(forward) = &mut step
            && outside
            && self.settings.is_in_doubt()
        {
            forward.then = Then::Settle;
        }
        step
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

fn long_name(frame: Frame<'_>) -> Step {
    match frame.is_whole() || frame.body.len() > NAMES_MAX {
        true => Step::Broken(WireError::Malformed(frame.header.tag)),
        false => Step::NeedBytes,
    }
}
