//! A lent server connection that has ended: its client stays connected, and is told what has become of its work.
//!
//! Requests in flight are answered with an error. An open transaction has failed: the client is put into a failed
//! transaction of its next server connection, where PostgreSQL itself answers whatever it says. Nothing is repeated.

use std::cell::RefCell;

use bytes::BytesMut;
use pgpalisade_policies::{Chain, Control, Statement, VerdictCache};

use super::action::{Action, Prerequisite};
use super::endings::{FinalError, put_survived};
use super::in_flight::{InFlight, Origin, Request};
use super::read_only::AccessChange;
use super::unserved::{Block, NextReply};
use super::{ClientHalf, ReadWriteRequest, Session, injected};
use crate::fence::{Leave, Permit, Pipeline};
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, ErrorFields, ErrorResponse, ReadyForQuery, Severity};

const ROLLED_BACK: &str = "What was not committed on it is rolled back.";
const REPEAT: &str = "End the transaction, and repeat it.";

/// Step on the way to where a client believes to be.
#[derive(Debug)]
pub enum Step {
    /// Carry this out.
    Decided(Action),
    /// Send this message of the client, and wait for the replies.
    Send(Permit, Box<[u8]>),
    Done,
}

/// Fate of the requests in flight: what they lead to, had they run.
#[derive(Debug)]
struct Fate {
    status: TransactionStatus,
    /// Whether one of them may commit.
    commits: bool,
    /// Whether nothing has run since a ROLLBACK.
    is_undone: bool,
    /// Status after each request cycle that the client has ended.
    cycles: Vec<TransactionStatus>,
    /// Whether more of the client's requests follow the last of these cycles.
    is_unfinished: bool,
}

impl Fate {
    fn run(&mut self, statement: &Statement) {
        self.is_undone = false;
        let is_outside = self.status == TransactionStatus::Idle;
        self.commits |= statement.may_commit_inside && (is_outside || statement.is_unread());
        for control in &statement.controls {
            match control {
                Control::Begin { .. } | Control::RollbackTo(_) => {
                    self.status = TransactionStatus::InTransaction;
                }
                Control::Commit { chain } => self.commit(*chain),
                Control::PrepareTransaction => self.commit(Chain::No),
                Control::Rollback { chain } => self.roll_back(*chain),
                _ => {}
            }
        }
    }

    const fn commit(&mut self, chain: Chain) {
        if !matches!(self.status, TransactionStatus::Failed) {
            self.commits = true;
        }
        self.roll_back(chain);
    }

    const fn roll_back(&mut self, chain: Chain) {
        self.is_undone = true;
        self.status = match chain {
            Chain::Yes => TransactionStatus::InTransaction,
            Chain::No => TransactionStatus::Idle,
        };
    }

    fn add(&mut self, entry: &InFlight) {
        match entry.position() {
            Some((verdict, at)) => {
                let rest = verdict.statements.get(at..).unwrap_or_default();
                rest.iter().for_each(|statement| self.run(statement));
            }
            // A name may stand for anything.
            None if entry.request.runs() => {
                self.is_undone = false;
                let is_known = entry.is_plain || entry.leave == Leave::Read;
                self.commits |= entry.request == Request::Execute && !is_known;
            }
            None => {}
        }
    }

    fn end_cycle(&mut self) {
        // An implicit transaction.
        self.commits |= self.status == TransactionStatus::Idle && !self.is_undone;
        self.cycles.push(self.status);
        self.is_unfinished = false;
    }
}

impl Session {
    /// Whether its client outlives the server connection: that is lent, and would be given back as it is.
    #[must_use]
    pub fn outlives_server(&self) -> bool {
        // A Sync that PostgreSQL may have ignored cannot be answered.
        self.is_lent() && self.leftover().is_none() && !self.server.ledger.has_unclear_sync()
    }

    fn fate(&self) -> Fate {
        let mut fate = Fate {
            status: self.client.state.status(),
            commits: false,
            is_undone: false,
            cycles: Vec::new(),
            is_unfinished: false,
        };
        for entry in self.server.ledger.iter() {
            fate.add(entry);
            // A statement of the proxy may stand for one that was refused. With a message in preparation, it is not
            // sent yet.
            let stands_in = entry.error.is_some() && self.prepared.is_none();
            match entry.origin {
                Origin::Injected if !stands_in => {}
                // The client's message for which it was sent follows, or has not been sent.
                Origin::ParsedAgain => {}
                _ if entry.request.ends_cycle() => fate.end_cycle(),
                _ => fate.is_unfinished = true,
            }
        }
        fate
    }

    /// Whether something in flight may have been committed, if the server has not said otherwise.
    #[must_use]
    pub fn may_have_committed(&self) -> bool {
        let server = &self.server;
        server.is_committed_midway || server.ledger.wrote() && self.fate().commits
    }

    /// Whether the message in preparation has got its answer, all but ReadyForQuery.
    #[must_use]
    pub fn has_answered_front(&self) -> bool {
        self.client.pipeline == Pipeline::Closed
            && self.prepared.as_ref().is_some_and(|done| {
                done.is_answered || done.read_write == ReadWriteRequest::Refused
            })
    }

    /// Parts the client from its server connection, which has ended. Returns what the client gets at once.
    #[must_use]
    pub fn lose_server(mut self) -> (Box<ClientHalf>, BytesMut) {
        let (mut error, mut out) = (BytesMut::new(), BytesMut::new());
        self.put_loss(&mut error);
        let fate = self.fate();
        for status in fate.cycles.iter().map(|status| after_loss(*status)) {
            out.extend_from_slice(&error);
            encode::put(&mut out, &ReadyForQuery::new(status.into()));
        }
        if fate.is_unfinished {
            out.extend_from_slice(&error);
        }
        let mut client = self.client;
        client.settings.drop_pending();
        client.statements = self.server.names.leave();
        // A declaration is not repeated in another connection, either.
        let declares = self.prepared.is_some_and(|done| done.waiting.is_some());
        let is_open = declares
            || client.state.status() == TransactionStatus::InTransaction
            || client.block == Block::Entering(TransactionStatus::InTransaction)
            || client.pipeline == Pipeline::Open;
        client.next_reply = if fate.is_unfinished || self.server.ledger.is_skipping() {
            NextReply::AtSync
        } else if is_open && out.is_empty() {
            NextReply::Error(error[..].into())
        } else {
            NextReply::OfServer
        };
        let is_told = !out.is_empty() || !matches!(client.next_reply, NextReply::OfServer);
        client.block = match client.block {
            // It was not sent, and the client knows of no error in it.
            held @ Block::Begun(_) if !is_told => held,
            Block::None if fate.status == TransactionStatus::Idle => Block::None,
            _ => Block::Failed,
        };
        client.state.lose_server();
        client.pipeline = Pipeline::Closed;
        client.settles = false;
        client.doubts_name = false;
        let mut told = BytesMut::new();
        self.server.reported.put_undone(&mut told);
        told.unsplit(out);
        (client, told)
    }

    /// Writes why the requests in flight, or the open transaction, have failed.
    fn put_loss(&mut self, out: &mut BytesMut) {
        let is_unknown = self.may_have_committed();
        let (sqlstate, message, hint) = match self.server.final_error.take() {
            Some(FinalError::Fence(rejection)) => return rejection.encode(Severity::Error, out),
            Some(FinalError::Server(error)) if !is_unknown || self.is_certain(&error) => {
                return put_survived(&error, ROLLED_BACK, REPEAT, out);
            }
            _ if is_unknown => (
                "08007",
                "the server connection was lost, and it is not known whether the last statement was committed",
                "Read the data to find out.",
            ),
            _ => ("08006", "the server connection was lost", REPEAT),
        };
        let fields = ErrorFields {
            severity: Severity::Error,
            sqlstate,
            message: &encode::with_code(sqlstate, message),
            detail: "",
            hint,
        };
        encode::put(out, &ErrorResponse::from(&fields));
    }

    /// Next step until the server connection is where the client believes to be.
    pub fn resume(&mut self, verdicts: &RefCell<VerdictCache>) -> Step {
        match std::mem::take(&mut self.client.block) {
            Block::None => Step::Done,
            Block::Begun(message) => {
                self.client.block = Block::Begun(message.clone());
                let decided = self.begin_held(&message, verdicts);
                decided.map_or_else(Step::Decided, |permit| {
                    self.client.block = Block::Entering(TransactionStatus::InTransaction);
                    Step::Send(permit, message)
                })
            }
            Block::Failed => self.begin_failed(),
            Block::Entering(status) if self.client.state.status() == status => Step::Done,
            Block::Entering(_) => {
                let ending = self.end_for_own_statement(b"PostgreSQL has begun no transaction");
                Step::Decided(ending.into())
            }
        }
    }

    fn begin_failed(&mut self) -> Step {
        self.client.block = Block::Failed;
        match self.server.read_only.due_outside(self.write_access()) {
            Some(AccessChange::Release) => self.begin_set_access(AccessChange::Release),
            Some(change) => return Step::Decided(Action::Need(Prerequisite::Access(change))),
            None => {}
        }
        self.client.block = Block::Entering(TransactionStatus::Failed);
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::begin_failed(out, ledger);
        Step::Decided(Action::Need(Prerequisite::Replies))
    }

    /// Whether the client has its next answer already, so that its message needs no server connection.
    #[must_use]
    pub const fn has_next_reply(&self) -> bool {
        !matches!(self.client.next_reply, NextReply::OfServer)
    }

    /// Whether the client believes to be in a transaction that its server connection is not in.
    #[must_use]
    pub fn is_to_resume(&self) -> bool {
        self.client.block != Block::None
    }
}

/// Status of a transaction that was lost with its server connection.
const fn after_loss(status: TransactionStatus) -> TransactionStatus {
    match status {
        TransactionStatus::Idle => TransactionStatus::Idle,
        TransactionStatus::InTransaction | TransactionStatus::Failed => TransactionStatus::Failed,
    }
}
