//! Statements of the protocol that the client has parsed in another server connection: parsed again in front of the
//! message that needs them, under the checks of a Parse.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pgpalisade_policies::{Analysis, Control, Opaque, TextEncoding};

use super::action::{Action, Prerequisite};
use super::frame::{Frame, Uncollected};
use super::in_flight::{InFlight, Origin, Request};
use super::judgement::Judged;
use super::ledger::Sent;
use super::lending::Tenancy;
use super::lookup::{self, Unclear};
use super::name_change::NameChange;
use super::statements::NAMES_BYTES_MAX;
use super::text_settings;
use super::{Session, injected};
use crate::fence::{Classified, Described, Name, Pipeline, PreparedText, Source};
use crate::wire::backend::{self, tag};
use crate::wire::encode::{self, ErrorFields, ErrorResponse, ReadyForQuery, Severity};

impl Session {
    /// Text that the name of a statement stands for when the next message arrives.
    #[inline]
    pub(super) fn find_statement(&mut self, name: Name<'_>) -> Result<PreparedText, Action> {
        match lookup::find(&self.server.names, &self.server.ledger, name) {
            Ok(Some(meaning)) => Ok(meaning.clone()),
            Ok(None) => self.find_elsewhere(name),
            Err(Unclear) => Err(Action::Need(Prerequisite::Replies)),
        }
    }

    #[cold]
    fn find_elsewhere(&mut self, name: Name<'_>) -> Result<PreparedText, Action> {
        let names = &self.server.names;
        // A Close in flight removes it everywhere.
        let is_kept = matches!(self.server.ledger.sent(name), Sent::Nothing);
        match names.elsewhere(name).filter(|_| is_kept).cloned() {
            Some(statement) => self.parse_again(name, &statement),
            None => Ok(self.vacate(name)),
        }
    }

    /// Removes a statement of this name from the server, if another client has left it there.
    fn vacate(&mut self, name: Name<'_>) -> PreparedText {
        let is_known = matches!(self.server.ledger.sent(name), Sent::Nothing);
        if is_known && self.server.names.is_taken(name) {
            let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
            injected::close(out, ledger, name.bytes());
            self.client.pipeline = Pipeline::Open;
        }
        PreparedText::default()
    }

    /// Removes the statements of other clients from a lent server connection, in which a text that is not read could
    /// run them with the client's token.
    pub(super) fn close_others(&mut self) {
        let others = self.server.names.of_others();
        if others.is_empty() {
            return;
        }
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        for name in &others {
            injected::close(out, ledger, name);
        }
        if self.client.pipeline == Pipeline::Closed {
            injected::sync(out, ledger);
        }
    }

    /// Makes PostgreSQL know a name that a Parse must not give twice.
    pub(super) fn occupy(&mut self, name: &[u8]) -> Result<(), Action> {
        let name = Name::statement(name);
        let names = &self.server.names;
        if name.is_unnamed() || names.elsewhere(name).is_none() && !names.is_taken(name) {
            return Ok(());
        }
        self.find_statement(name).map(drop)
    }

    /// Whether a text of this length may be kept beside those in flight.
    pub(super) fn has_room_for_text(&mut self, len: usize) -> bool {
        let server = &mut self.server;
        if server.ledger.is_empty() {
            server.texts_in_flight = 0;
        }
        server.texts_in_flight == 0 || server.texts_in_flight + len <= NAMES_BYTES_MAX
    }

    /// Source of a statement that is parsed now, if it means the same in another server connection.
    pub(super) fn source_of(
        &self,
        parse: Frame<'_>,
        (name, text): (&[u8], Result<&[u8], Uncollected<'_>>),
    ) -> Option<Arc<Source>> {
        if self.server.tenancy == Tenancy::ForLife || !parse.is_whole() {
            return None;
        }
        let text = text.ok()?;
        let rest = parse.body.get(name.len() + 1..)?;
        let settings = &self.server.text_settings;
        let encoding = settings.for_text(text, self.server.ledger.settled());
        let differs = settings.differ() && text_settings::decide(text);
        let is_same = encoding == Some(TextEncoding::Utf8) && !differs;
        is_same.then(|| Source::new(rest))
    }

    fn parse_again(
        &mut self,
        name: Name<'_>,
        statement: &Arc<Classified>,
    ) -> Result<PreparedText, Action> {
        let Some(source) = &statement.source else {
            return Ok(self.vacate(name));
        };
        if source.is_outdated() && !self.is_failed() {
            return Err(self.refuse_outdated(name));
        }
        let settings = &self.server.text_settings;
        let settled = self.server.ledger.settled();
        let depends = text_settings::decide(source.text());
        if depends && settled.is_none() {
            // What is in flight may change a setting by a function.
            return Err(Action::Need(Prerequisite::Replies));
        }
        if settings.differ() && depends {
            // Its literals would be read in another way. PostgreSQL says that it does not know the statement.
            self.server.names.remove_elsewhere(name);
            return Ok(self.vacate(name));
        }
        let statement = match settings.for_text(source.text(), settled) {
            Some(TextEncoding::Utf8) => Arc::clone(statement),
            Some(TextEncoding::Other) => Arc::new(in_doubt(statement)),
            None => return Err(Action::Need(Prerequisite::Replies)),
        };
        let judged = Judged {
            verdict: &statement.verdict,
            text: source.text(),
        };
        let leave = self.before_parse(&judged)?;
        if let Some(prerequisite) = self.publish_first(&statement.verdict) {
            return Err(Action::Need(prerequisite));
        }
        self.server.note_parse(&statement.verdict);
        let meaning = PreparedText::Classified(Arc::clone(&statement));
        let mut parse = InFlight::new(Request::Parse, Origin::ParsedAgain, None);
        parse.name = NameChange::set(name, meaning.clone());
        parse.leave = leave;
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::parse(out, ledger, name.bytes(), source.parse(), parse);
        self.client.pipeline = Pipeline::Open;
        if !source.is_told() {
            return Ok(meaning);
        }
        let mut describe = InFlight::new(Request::Describe, Origin::ParsedAgain, None);
        describe.name = NameChange::Describe(Arc::clone(source));
        injected::describe(out, ledger, name.bytes(), describe);
        Err(Action::Need(Prerequisite::Replies))
    }

    /// Keeps statements in this server connection whose Parse is in flight: PostgreSQL reads them under a setting that
    /// it has just reported, and that a function has changed.
    pub(super) fn keep_parses_in_flight(&mut self) {
        for change in self.server.ledger.names_mut() {
            if let Some(PreparedText::Classified(statement)) = change.statement_mut()
                && let Some(source) = &statement.source
                && text_settings::decide(source.text())
            {
                Arc::make_mut(statement).source = None;
            }
        }
    }

    /// Whether the unnamed statement, or one whose Parse is in flight, means something else after a SET that an Execute
    /// runs now.
    pub(super) fn new_statement_depends_on_settings(&self) -> bool {
        let Self { server, .. } = self;
        let depends = |meaning: &PreparedText| {
            let source = meaning.source();
            source.is_some_and(|source| text_settings::decide(source.text()))
                && meaning.depends_on_settings()
        };
        let unnamed = Name::statement(b"");
        let is_unnamed = match server.ledger.sent(unnamed) {
            Sent::Nothing => {
                let elsewhere = server.names.elsewhere(unnamed);
                server.names.get(unnamed).is_some_and(depends) || elsewhere.is_some()
            }
            Sent::Change(_) => false,
            Sent::Unclear => true,
        };
        let mut in_flight = server.ledger.iter();
        is_unnamed || in_flight.any(|entry| entry.name.statement().is_some_and(depends))
    }

    /// Refuses a message about a statement whose types are not those that the client was told.
    fn refuse_outdated(&mut self, name: Name<'_>) -> Action {
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::refuse_outdated(out, ledger, name.bytes());
        self.client.pipeline = Pipeline::Open;
        Action::Discard
    }

    /// Tells the client what PostgreSQL says where a cached plan has changed.
    pub(super) fn tell_outdated(&mut self) {
        let fields = ErrorFields {
            severity: Severity::Error,
            sqlstate: "0A000",
            message: "cached plan must not change result type",
            detail: "",
            hint: "",
        };
        let mut error = ErrorResponse::from(&fields);
        // Drivers know the error by them.
        let source = [(b'F', "plancache.c"), (b'R', "RevalidateCachedQuery")];
        let source = source.map(|(letter, text)| (letter, text.to_owned()));
        error.fields.extend(source);
        encode::put(&mut self.output.to_client, &error);
    }

    /// Applies a description of a statement or portal.
    pub(super) fn on_description(&mut self, message: u8, body: &[u8]) {
        let Some(InFlight {
            name: NameChange::Describe(source),
            origin,
            ..
        }) = self.server.ledger.front()
        else {
            return;
        };
        let part = match message {
            tag::PARAMETER_DESCRIPTION => Described::Parameters,
            _ => Described::Result,
        };
        let Some(hash) = hash(message, body) else {
            return;
        };
        if *origin == Origin::Client {
            return source.tell(part, hash);
        }
        source.compare(part, hash);
        if source.is_outdated() {
            self.server.names.forget_outdated();
        }
    }

    /// Parses the statements again that a text names.
    pub(super) fn parse_named_again(
        &mut self,
        verdict: &Analysis,
        request: Request,
    ) -> Option<Action> {
        let prepared = self.prepared.as_ref();
        if prepared.is_some_and(|done| done.is_answered) {
            return Some(Action::Discard);
        }
        let pipeline = self.client.pipeline;
        let has_sync = pipeline == Pipeline::Closed && request == Request::Query;
        let deallocated = deallocated(verdict).filter(|_| has_sync);
        // Also if it differs from what the client was told, so that it cannot be parsed again.
        let deallocated = deallocated.filter(|name| self.server.names.elsewhere(*name).is_some());
        let named = self.named_elsewhere(verdict);
        if named.is_none() && deallocated.is_none() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Action::Need(Prerequisite::Replies));
        }
        // A failed transaction still lets another client's statement be closed.
        let parses = !self.is_failed() && self.unguarded().is_none();
        if let Some(name) = deallocated.filter(|_| parses) {
            return Some(self.deallocate(name));
        }
        let named = named?;
        let name = Name::statement(named.as_bytes());
        if !parses && !self.server.names.is_taken(name) {
            return None;
        }
        match self.movable(name).filter(|_| parses).cloned() {
            Some(statement) => match self.parse_again(name, &statement) {
                Ok(_) | Err(Action::Need(Prerequisite::Replies)) => {}
                Err(action) => return Some(action),
            },
            None => drop(self.vacate(name)),
        }
        if has_sync {
            let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
            injected::sync(out, ledger);
            self.client.pipeline = Pipeline::Closed;
        }
        Some(Action::Need(Prerequisite::Replies))
    }

    /// Name in a text under which the server does not have the client's statement, but may be given it, or has another
    /// client's.
    fn named_elsewhere(&self, verdict: &Analysis) -> Option<Box<str>> {
        let names = &self.server.names;
        let statements = verdict.statements.iter();
        let mut controls = statements.flat_map(|statement| &statement.controls);
        controls.find_map(|control| match control {
            Control::Execute { name: text }
            | Control::Deallocate { name: text }
            | Control::Prepare { name: text, .. } => {
                let name = Name::statement(text.as_bytes());
                let is_unready = names.is_taken(name) || self.movable(name).is_some();
                is_unready.then(|| text.clone())
            }
            _ => None,
        })
    }

    /// Statement of the client that can be parsed again.
    fn movable(&self, name: Name<'_>) -> Option<&Arc<Classified>> {
        let found = self.server.names.elsewhere(name)?;
        let source = found.source.as_ref()?;
        (!source.is_outdated()).then_some(found)
    }

    /// Answers a DEALLOCATE of a statement that this server connection does not have.
    fn deallocate(&mut self, name: Name<'_>) -> Action {
        let server = &mut self.server;
        server.names.remove_elsewhere(name);
        server.names.on_simple_query();
        injected::close_unnamed(&mut self.output.to_server, &mut server.ledger);
        let out = &mut self.output.to_client;
        encode::put_raw(out, tag::COMMAND_COMPLETE, b"DEALLOCATE\0");
        encode::put(out, &ReadyForQuery::new(self.client.state.status().into()));
        Action::Discard
    }

    /// Notes that a Parse has failed. If the proxy has sent a Sync after it, the client has the answer to its Query.
    pub(super) fn on_named_failed(&mut self) {
        if let Some(sync) = self.server.ledger.front_mut()
            && sync.origin == Origin::Injected
        {
            sync.origin = Origin::Client;
            self.prepared().is_answered = true;
        }
    }
}

/// The name in a text that is nothing but a DEALLOCATE of it.
fn deallocated(verdict: &Analysis) -> Option<Name<'_>> {
    let [statement] = &*verdict.statements else {
        return None;
    };
    match &*statement.controls {
        [Control::Deallocate { name }] => Some(Name::statement(name.as_bytes())),
        _ => None,
    }
}

/// The statement for a server that may read its text differently.
fn in_doubt(statement: &Classified) -> Classified {
    Classified {
        verdict: Arc::new(statement.verdict.in_doubt(Opaque::Encoding)),
        ..statement.clone()
    }
}

/// Hash of what decides how a client reads values.
fn hash(message: u8, body: &[u8]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    if message == tag::ROW_DESCRIPTION {
        for column in backend::columns(body) {
            column?.hash(&mut hasher);
        }
    } else {
        body.hash(&mut hasher);
    }
    Some(hasher.finish())
}
