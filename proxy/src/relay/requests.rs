//! Messages from the client: what each of them needs before it may be sent.

use pgpalisade_policies::{Category, Effects, MAX_PARSED, MAX_PARSED_INLINE, Opaque};

use super::progress::Message;
use super::steps::{Forward, Judged, Refused, Step, Then};
use super::{End, Front, Gate, Relay};
use crate::fence::{Basis, Guard};
use crate::rejection_log::Enforcement;
use crate::session::Pipeline;
use crate::session::in_flight::{InFlight, Leave, Request};
use crate::wire::WireError;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::{self, HEADER_LEN, Header};

/// A message that carries a text is collected up to this size: a text in it can be classified at once. The slack is
/// for names and parameter types.
const LOOKED_AT_MAX: usize = MAX_PARSED_INLINE + NAMES_MAX;

/// Up to this size where the session may not just send it; what is longer is not parsed anyway.
const COLLECTED_MAX: usize = MAX_PARSED + NAMES_MAX;

/// Names of statements and portals must end within this many bytes of their message.
pub(super) const NAMES_MAX: usize = 16 * 1024;

/// The message at the front of the client's bytes, as far as it has arrived.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) header: Header,
    pub(super) body: &'a [u8],
}

impl Frame<'_> {
    pub(super) const fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_len
    }

    pub(super) const fn why_not_collected(&self) -> Opaque {
        match self.header.body_len <= COLLECTED_MAX {
            true => Opaque::NoRoom,
            false => Opaque::TooLong,
        }
    }
}

/// The end of a COPY's data. What stands behind the COPY in its text is answered before anything else is decided.
pub(super) fn behind_copy(step: Step) -> Step {
    match step {
        Step::Forward(forward) => Step::Forward(Forward {
            then: Then::Settle,
            ..forward
        }),
        step => step,
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
                    self.done_with_front();
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
            if self.take(step)? == Message::Dropped {
                self.done_with_front();
                self.client_discard = frame_len;
            }
        }
        self.pass_on(bytes, &mut sent, at)?;
        Ok(sent)
    }

    /// The message at the front was sent or dropped: nothing that was found out about it holds for the next.
    fn done_with_front(&mut self) {
        self.front = Front::Unknown;
        self.classified = None;
        self.collecting.done();
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
        if let Some(rejection) = observed {
            self.record(&rejection, Enforcement::Observed);
        }
        let basis = permit.basis();
        self.upstream.admit(permit, frame_len);
        if let Some(mut entry) = entry {
            if matches!(basis, Basis::Token | Basis::Exempt) {
                entry.leave = Leave::Write;
            }
            match entry.request {
                Request::Execute => self.text_settings.on_run(),
                request if request.ends_cycle() => self.text_settings.on_cycle_sent(),
                _ => {}
            }
            self.ledger.push(entry);
        }
        then
    }

    /// Looks at one message. Changes nothing but what later looks at the same message rely on.
    fn look_at(&mut self, header: Header, bytes: &[u8]) -> Step {
        let body = bytes
            .get(HEADER_LEN..bytes.len().min(header.frame_len()))
            .unwrap_or_default();
        let frame = Frame { header, body };
        let tag = match FrontendTag::from_byte(header.tag) {
            Ok(tag) => tag,
            Err(error) => return Step::Broken(error),
        };
        if self.ledger.is_skipping() && !matches!(tag, FrontendTag::Sync | FrontendTag::Terminate) {
            return Step::Discard;
        }
        match self.decide_message(tag, frame) {
            // They would not come: the server waits for the data of a COPY, and ends a session that sends this.
            Step::AwaitReplies if self.ledger.is_copying_in() => {
                Step::Broken(WireError::DuringCopy(header.tag))
            }
            step => step,
        }
    }

    fn decide_message(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Step {
        // A request cycle of a session that does not hold all that it could need is judged by what is known at its
        // start, so the one before must have been answered.
        if tag.is_judged() && self.ledger.settled().is_none() && self.permit_for_any().is_none() {
            return Step::AwaitReplies;
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
            FrontendTag::Flush if frame.header.body_len > 0 => self.malformed(tag),
            FrontendTag::Flush => self.harmless(tag, None),
            FrontendTag::FunctionCall => self.look_at_function_call(),
            FrontendTag::CopyData | FrontendTag::CopyDone => self.look_at_copy_data(tag),
            FrontendTag::CopyFail => behind_copy(self.harmless(tag, Some(Request::CopyEnd))),
            FrontendTag::Terminate => Step::Terminate,
            FrontendTag::Password => Step::Broken(WireError::UnknownFrontendTag(frame.header.tag)),
        }
    }

    pub(super) fn harmless(&self, tag: FrontendTag, request: Option<Request>) -> Step {
        let entry = request.map(|request| InFlight::client(request, None));
        match self.fence.admit_harmless(tag) {
            Some(permit) => Step::Forward(Forward::plain(permit, entry)),
            None => Step::Broken(WireError::UnknownFrontendTag(0)),
        }
    }

    /// Whether the rest of a message with a text is waited for. A session that may send whatever it likes does not
    /// wait for a long one.
    pub(super) fn collects(&mut self, frame: Frame<'_>) -> bool {
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
        let text = match (frame.is_whole(), frontend::query(frame.body)) {
            (true, Ok(text)) => Ok(text),
            (true, Err(_)) => return self.malformed(FrontendTag::Query),
            (false, _) => Err(frame.why_not_collected()),
        };
        if let Ok(text) = text
            && let Some(permit) = self.fast_permit(text)
        {
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
            // A simple Query ends the transaction of a pipeline, with or without a Sync.
            self.position.pipeline = Pipeline::Closed;
            self.guard = Guard::Sure;
        }
        step
    }

    fn look_at_function_call(&mut self) -> Step {
        // It can call any function by its number: PostgreSQL's documentation calls it obsolete.
        let effects = Effects::unknown(Some(Category::FunctionCall));
        self.decide_effects(&effects, Request::FunctionCall, Refused::Whole)
    }

    fn look_at_sync(&mut self) -> Step {
        if self.ledger.is_copying_in() {
            // The server ignores it there.
            return self.harmless(FrontendTag::Sync, None);
        }
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
