//! A server connection that is lent: joined with a client for some transactions, parted from it between two of them,
//! and reset before the next client gets it.
//!
//! A server connection keeps the tokens that were accepted for it: they are what its server process is registered with.
//! The client keeps the tokens that it has declared. They count in a server connection for which they were accepted.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::BytesMut;

use pgpalisade_authority::Claim;
use pgpalisade_policies::{Analysis, Control, Leftover, Lifetime};

use super::action::{Action, Prerequisite, Refused, Waiting};
use super::greeting::Greeting;
use super::in_flight::{Origin, Request};
use super::names::Names;
use super::settings::Texts;
use super::token_request::TokenRequest;
use super::{ClientHalf, Identity, Output, ServerHalf, Session, injected, lookup, text_settings};
use crate::fence::{HeldTokens, Name, ServerText, SessionFence};
use crate::rejection::Rejection;
use crate::wire::frontend::FrontendTag;

/// Bytes of a reset, about.
const RESET_LEN: usize = 192;

/// How long a client has its server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// As long as both live.
    ForLife,
    /// For some transactions, and as long as something of the client is left in it.
    Lent(Option<Leftover>),
}

impl ServerHalf {
    /// Its server process.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Notes that the server's text of the token is not that of the next client.
    pub const fn forget_token_text(&mut self) {
        self.has_token_text = false;
    }

    /// Settings that the server has reported at the login, or after the last reset.
    #[must_use]
    pub const fn greeting(&self) -> &Arc<Greeting> {
        self.reported.initial()
    }

    /// Settings of a client that it has.
    #[must_use]
    pub const fn applied(&self) -> Option<&Arc<Texts>> {
        self.applied.as_ref()
    }

    /// Notes that a setting is changed by its client, which takes it along.
    pub(super) fn on_assignment(&mut self, name: &str) {
        self.is_discarded = false;
        self.has_run_more_than_reads = true;
        if text_settings::decides_meaning(name) {
            self.text_settings.on_change();
        }
    }

    /// Whether nothing is left in it that another client could find, unless by a function of the database: since its
    /// login, or the last reset, it has only read. It may have prepared statements, which keep out of other clients'
    /// way.
    #[must_use]
    pub fn is_tidy(&self) -> bool {
        let has_tokens = self.has_token_text || !self.accepted().is_empty();
        let has_run = self.has_run_more_than_reads || self.applied.is_some();
        !has_run && !has_tokens && self.names.are_few()
    }

    /// Tokens that its server process is registered with.
    #[must_use]
    pub fn accepted(&self) -> &[Arc<HeldTokens>] {
        self.registration.accepted()
    }

    /// Notes DISCARD ALL, or a reset.
    pub(super) fn forget_leftover(&mut self) {
        if let Tenancy::Lent(left) = &mut self.tenancy {
            left.take_if(|left| !left.outlives_resets());
            self.text_settings.on_reset();
        }
    }

    /// Notes that a setting of the session may have changed.
    pub(super) fn note_setting(&mut self) {
        self.keep(Leftover::Setting);
        self.text_settings.on_change();
    }

    /// Notes for what the client keeps the server connection.
    pub(super) fn keep(&mut self, kept: Leftover) {
        self.has_run_more_than_reads = true;
        if let Tenancy::Lent(left) = &mut self.tenancy {
            *left = (*left).max(Some(kept));
        }
    }

    /// Notes a statement that is parsed here. EXECUTE and FETCH may run it, too, whatever is known of its name.
    pub(super) fn note_parse(&mut self, verdict: &Analysis) {
        if let Some(left) = verdict.leaves().filter(|left| left.outlives_resets()) {
            self.keep(left);
        }
    }

    /// Notes what a text that is sent leaves, should it succeed.
    pub(super) fn note_leftover(&mut self, verdict: &Analysis) {
        self.is_discarded = false;
        self.has_run_more_than_reads |= !verdict.only_reads();
        if let Tenancy::Lent(left) = &mut self.tenancy {
            let statements = verdict.statements.iter();
            let mut settings = statements.flat_map(|statement| &statement.effects.settings);
            if settings.any(|name| text_settings::decides_meaning(name)) {
                self.text_settings.on_change();
            }
            *left = (*left).max(verdict.leaves());
        }
    }

    /// Notes that the server has run a text which the grammar here refuses: it may have done anything.
    pub(super) fn note_unknown_syntax(&mut self) {
        self.note_setting();
        self.keep(Leftover::Unread);
        self.names.forget_statements();
    }

    /// Writes what removes all that a client has left, also by functions, except libraries and their connections. If it
    /// fails, the session ends.
    ///
    /// All of it is utility statements: a SELECT costs more than these together. `seed` is random, for random().
    fn reset(&mut self, out: &mut BytesMut, seed: u32, last: Option<&str>) {
        let initial = self.greeting().initial.texts;
        let guard = self.read_only.on_reset().map(injected::default_access);
        let encoding = initial.is_utf8().then_some(injected::UTF8);
        let mut settings = String::with_capacity(RESET_LEN);
        let written = write!(settings, "SET seed = 0.{seed:010}");
        debug_assert!(written.is_ok());
        for more in [guard, encoding].into_iter().flatten() {
            settings.push_str("; ");
            settings.push_str(more);
        }
        out.reserve(RESET_LEN);
        // PostgreSQL runs this one only alone in its Query.
        injected::query(out, &mut self.ledger, injected::DISCARD);
        injected::query(out, &mut self.ledger, &settings);
        if let Some(last) = last {
            injected::query(out, &mut self.ledger, last);
        }
        self.names = Names::default();
        self.has_token_text = false;
        self.applied = None;
        self.has_run_more_than_reads = false;
        self.forget_leftover();
    }

    /// Whether the register may have it at more than the last of [the accepted tokens](Self::accepted). It is to be
    /// closed, because a takeover that does not concern its next client may end it.
    #[must_use]
    pub const fn exceeds_last_tokens(&self) -> bool {
        self.registration.exceeds_last
    }
}

impl Session {
    /// Joins a client with a server connection in which another has left something, and begins with a reset. Nothing of
    /// the client is sent before that is [done](Self::is_resetting).
    #[must_use]
    pub fn lend_used(client: Box<ClientHalf>, mut server: Box<ServerHalf>, seed: u32) -> Self {
        let mut to_server = BytesMut::new();
        server.reset(&mut to_server, seed, None);
        let mut session = Self::lend(client, server);
        session.output.to_server = to_server;
        session
    }

    /// Joins a client with a server connection in which nothing of another is left.
    #[must_use]
    pub fn lend(mut client: Box<ClientHalf>, mut server: Box<ServerHalf>) -> Self {
        server.tenancy = Tenancy::Lent(None);
        server.text_settings.on_reset();
        server
            .names
            .enter(client.statements.take().unwrap_or_default());
        let text = if server.has_token_text {
            ServerText::Tokens
        } else {
            ServerText::Other
        };
        client.state.enter_server(server.accepted(), text);
        let mut session = Self::join(client, server);
        session.tell_news();
        session
    }

    /// Whether the server connection is being reset.
    #[inline]
    #[must_use]
    pub fn is_resetting(&self) -> bool {
        // No other Query of the proxy is in flight beside a client.
        let front = self.server.ledger.front();
        front.is_some_and(|front| {
            front.origin == Origin::Injected && front.request == Request::Query
        })
    }

    /// A session without a client, in which a server connection is [reset](Self::begin_reset).
    #[must_use]
    pub fn without_client(fence: SessionFence, server: Box<ServerHalf>) -> Self {
        let client = ClientHalf::begin(fence, None, None);
        Self::join(Box::new(client), server)
    }

    pub(super) fn join(client: Box<ClientHalf>, server: Box<ServerHalf>) -> Self {
        Self {
            client,
            server,
            prepared: None,
            output: Output::default(),
        }
    }

    pub(super) fn is_lent(&self) -> bool {
        self.server.tenancy != Tenancy::ForLife
    }

    /// Thing of the client that is left in the lent server connection, for which the client keeps it.
    #[must_use]
    pub fn leftover(&self) -> Option<Leftover> {
        let statement = || {
            let keeps = self.server.names.keep_client();
            keeps.then_some(Leftover::Statement)
        };
        match self.server.tenancy {
            Tenancy::ForLife => None,
            Tenancy::Lent(left) => left.or_else(statement),
        }
    }

    /// Parts the client from its server connection between two transactions. What is [left](Self::leftover) stays there
    /// up to the next reset.
    ///
    /// # Errors
    ///
    /// The session, if a transaction is open, anything is in flight, its output was not taken, or the server has
    /// announced its end.
    pub fn part(mut self) -> Result<(Box<ClientHalf>, Box<ServerHalf>), Box<Self>> {
        if !self.may_part() {
            return Err(Box::new(self));
        }
        self.server.has_run_more_than_reads |= self.leftover().is_some();
        self.client.state.leave_server();
        self.client.settles = false;
        self.client.doubts_name = false;
        self.client.statements = self.server.names.leave();
        Ok((self.client, self.server))
    }

    /// Notes what the statements leave that a text runs by name.
    pub(super) fn note_named(&mut self, verdict: &Analysis) {
        if !verdict.has_controls() || !self.is_lent() {
            return;
        }
        let controls = verdict.statements.iter().flat_map(|all| &all.controls);
        let left = controls.filter_map(|control| {
            let name = match control {
                Control::Execute { name } => Name::statement(name.as_bytes()),
                Control::Fetch { portal } => Name::portal(portal.as_bytes()),
                _ => return None,
            };
            let found = lookup::find(&self.server.names, &self.server.ledger, name);
            let verdict = found.ok().flatten()?.verdict();
            verdict.map_or(Some(Leftover::Unread), |verdict| verdict.leaves())
        });
        if let Some(left) = left.max() {
            self.server.keep(left);
        }
    }

    /// Whether [`Self::part`] would part it.
    #[must_use]
    pub fn may_part(&self) -> bool {
        let is_done = self.prepared.is_none() && self.output.is_empty() && !self.is_terminated();
        // A Query in a pipeline that has failed before it is skipped like the rest.
        is_done && self.is_idle() && !self.server.ledger.is_skipping()
    }

    /// Whether the client may part once all was answered that it has sent, as far as is known before.
    #[must_use]
    pub fn may_part_soon(&self) -> bool {
        !self.is_inside() && self.server.ledger.ends_cycle()
    }

    /// Declares the client's tokens first if they were accepted for another server connection. The first message after
    /// a takeover is refused, whatever it is.
    #[inline]
    pub(super) fn declare_first(&mut self, tag: FrontendTag) -> Option<Action> {
        match self.client.state.undeclared() {
            None => None,
            Some(_) => self.declare_in_another_server(tag),
        }
    }

    #[cold]
    fn declare_in_another_server(&mut self, tag: FrontendTag) -> Option<Action> {
        if tag.runs_nothing() || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Action::Need(Prerequisite::Replies));
        }
        let refused = if tag.is_extended() {
            Refused::InPipeline
        } else {
            Refused::Whole
        };
        let state = &mut self.client.state;
        if let Some((stale, mark)) = state.keep_stale() {
            let claim = Claim::Token(stale.token);
            let rejection = Rejection::behind(stale.mark.scope(), claim, mark);
            return Some(self.refuse(Box::new(rejection), refused, None));
        }
        let wanted = TokenRequest::again(&self.client.fence, state.undeclared()?);
        let change = if self.is_inside() {
            self.server.read_only.due_inside(Lifetime::Session)
        } else {
            None
        };
        self.prepared().waiting = Some(Waiting {
            refused,
            statement: None,
        });
        Some(Action::Need(Prerequisite::Tokens(Box::new(wanted), change)))
    }

    /// Sends a reset in a session without a client, and then `last`, a query of the caller.
    pub fn begin_reset(&mut self, seed: u32, last: Option<&str>) {
        self.server.reset(&mut self.output.to_server, seed, last);
    }

    /// Runs the texts of a client's settings, after a reset if the server connection has others.
    pub fn begin_settings(&mut self, wanted: &Arc<Texts>) {
        let (out, server) = (&mut self.output.to_server, &mut self.server);
        // Equal texts may have been read by other settings.
        injected::query(out, &mut server.ledger, injected::DEALLOCATE_ALL);
        server.names = Names::default();
        // The time that the client gives its statements is not for these.
        for is_last in [false, true] {
            let texts = wanted
                .iter()
                .filter(|(name, _)| name.ends_with("_timeout") == is_last);
            for (_, text) in texts {
                injected::query(out, &mut server.ledger, text);
            }
        }
        server.applied = Some(Arc::clone(wanted));
    }

    /// Gives the server connection back after the replies to [`Self::begin_settings`].
    #[must_use]
    pub fn end_settings(self) -> Option<Box<ServerHalf>> {
        self.part().ok().map(|(_, server)| server)
    }

    /// Gives the server connection back after the replies to [`Self::begin_reset`]. `None`: it is not as it was asked
    /// to be, and is to be closed.
    #[must_use]
    pub fn end_reset(self) -> Option<Box<ServerHalf>> {
        let is_reset = self.server.read_only.is_reset();
        let (_, server) = self.part().ok().filter(|_| is_reset)?;
        Some(server)
    }
}
