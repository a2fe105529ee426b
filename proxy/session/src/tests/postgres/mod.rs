//! PostgreSQL's own rules, as far as a conversation shows them: pipelines skipped to Sync after an error, implicit
//! transactions, blocks, COPY, names, replies that wait for Sync or Flush, and read-only mode.
//!
//! Source: `PostgresMain` in `src/backend/tcop/postgres.c`, `xact.c`, `copyfromparse.c`.

mod preparing;
mod running;

use std::collections::{BTreeMap, VecDeque};

use pgpalisade_policies::{Access, Chain};

use super::frames::{error_body, message, split, strings};
use super::sql::{
    Block, CURSOR, Company, DEFAULT_ACCESS, Keeping, Lifetime, ServerError, Settings, Sql, TOKEN,
    Transaction,
};
use crate::wire::frontend::{self, Target};

/// Stands for the empty value to which a client's RESET returns the token in a lent server.
pub(super) const AT_RESET: &str = "at RESET";

/// A write: the value of `fencing.token` at the time.
pub(super) type Write = String;

/// A server process.
#[derive(Debug)]
pub(super) struct Postgres {
    settings: Settings,
    /// Default access mode that was last reported to the client.
    reported: String,
    transaction: Option<Transaction>,
    statements: BTreeMap<String, Prepared>,
    portals: BTreeMap<String, Portal>,
    mode: Mode,
    copy: Option<Copy>,
    held_back: Vec<u8>,
    sent: Vec<u8>,
    /// Writes, and those that a COMMIT has committed.
    pub(super) writes: Vec<Write>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Normal,
    SkippingToSync,
    Closed,
}

/// Protocol in which a statement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Simple,
    Extended,
}

#[derive(Debug, Clone)]
struct Prepared {
    statement: Option<Sql>,
    /// Whether it returned rows when it was prepared.
    shape: Shape,
}

/// Whether rows come; for EXECUTE and FETCH that depends on the session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Rows,
    NoRows,
}

#[derive(Debug)]
struct Portal {
    /// Savepoints that were open when it was bound. It ends with the last of them.
    depth: usize,
    statement: Option<Sql>,
    keeping: Keeping,
    shape: Shape,
    /// Command tag of its statement, after it has run.
    command_tag: String,
    /// Whether it has run, so that its rows are there.
    ran: bool,
    /// Rows not fetched yet.
    rows: VecDeque<Vec<u8>>,
}

/// A COPY FROM STDIN that waits for data.
#[derive(Debug)]
struct Copy {
    protocol: Protocol,
    rows: usize,
    /// Statements after it in its text.
    rest: Vec<Sql>,
}

/// Result of running a statement.
enum Ran {
    /// Rows and command tag.
    Done(Vec<Vec<u8>>, String),
    /// It waits for COPY data.
    Copies,
}

const DIVISION: ServerError = ("22012", "division by zero");
const NO_SETTING: ServerError = ("42704", "unrecognized configuration parameter");
const FAILED: ServerError = ("25P02", "current transaction is aborted");

impl Postgres {
    /// A session that has started with these settings.
    pub(super) fn new(startup: &[(&str, &str)]) -> Self {
        let settings = Settings::new(startup);
        Self {
            reported: settings.get(DEFAULT_ACCESS).unwrap_or_default().to_owned(),
            settings,
            transaction: None,
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            mode: Mode::Normal,
            copy: None,
            held_back: Vec::new(),
            sent: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// Default access mode that its login reports.
    pub(super) fn default_access(&self) -> &str {
        &self.reported
    }

    pub(super) fn is_closed(&self) -> bool {
        self.mode == Mode::Closed
    }

    /// Value of a setting, if it exists.
    /// A server that is lent: its login had no token, and a client's RESET is told apart from that.
    pub(super) fn lent(access: &str) -> Self {
        let mut server = Self::new(&[(DEFAULT_ACCESS, access), (TOKEN, AT_RESET)]);
        server.forget_token();
        server
    }

    /// Begins anew without a token, as after the proxy's reset.
    pub(super) fn forget_token(&mut self) {
        self.settings.set(TOKEN, Some(""), Lifetime::Session);
    }

    fn value(&self, name: &str) -> Option<String> {
        self.settings.get(name).map(str::to_owned)
    }

    /// Whether a Sync would now run the rest of a cursor WITH HOLD.
    pub(super) fn sync_runs_a_cursor(&self) -> bool {
        let mut portals = self.portals.values();
        let is_implicit = |transaction: &Transaction| transaction.block == Block::Implicit;
        self.transaction.as_ref().is_some_and(is_implicit)
            && portals.any(|portal| portal.keeping == Keeping::UntilHeld)
    }

    /// Messages that it has sent since the last call.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        split(&std::mem::take(&mut self.sent))
    }

    /// Reads one message.
    pub(super) fn read(&mut self, tag: u8, body: &[u8]) {
        match (tag, self.mode) {
            (_, Mode::Closed) => return,
            (b'X', _) => {
                self.mode = Mode::Closed;
                return;
            }
            (b'S', _) | (_, Mode::Normal) => {}
            (_, Mode::SkippingToSync) => return,
        }
        if self.copy.is_some() {
            return self.read_copy(tag);
        }
        match tag {
            b'Q' => self.on_query(body),
            b'F' => self.on_function_call(),
            b'S' => {
                self.mode = Mode::Normal;
                self.end_request();
            }
            b'H' if body.is_empty() => self.flush(),
            b'd' | b'c' | b'f' => {}
            _ => {
                self.start();
                if let Err(refusal) = self.on_extended(tag, body) {
                    self.fail(refusal, Protocol::Extended);
                }
            }
        }
    }

    fn say(&mut self, tag: u8, body: &[u8]) {
        self.held_back.extend(message(tag, body));
    }

    fn flush(&mut self) {
        self.sent.append(&mut self.held_back);
    }

    fn ready(&mut self) {
        let access = self
            .settings
            .get(DEFAULT_ACCESS)
            .unwrap_or_default()
            .to_owned();
        if access != self.reported {
            self.say(b'S', &strings(&[DEFAULT_ACCESS, &access]));
            self.reported = access;
        }
        let status = match &self.transaction {
            Some(Transaction {
                block: Block::Open, ..
            }) => b'T',
            Some(Transaction {
                block: Block::Failed,
                ..
            }) => b'E',
            _ => b'I',
        };
        self.say(b'Z', &[status]);
        self.flush();
    }

    fn fail(&mut self, (sqlstate, text): ServerError, protocol: Protocol) {
        self.say(b'E', &error_body("ERROR", sqlstate, text));
        self.flush();
        self.copy = None;
        if let Some(transaction) = &mut self.transaction {
            let last = transaction.savepoints.last();
            let before = last.map_or(&transaction.before, |(settings, _)| settings);
            self.settings = before.clone();
            match transaction.block {
                Block::Implicit => self.end(),
                Block::Open | Block::Failed => transaction.block = Block::Failed,
            }
        }
        if protocol == Protocol::Extended {
            self.mode = Mode::SkippingToSync;
        }
    }

    fn start(&mut self) -> &mut Transaction {
        let settings = &self.settings;
        self.transaction
            .get_or_insert_with(|| Transaction::new(settings))
    }

    fn is_failed(&self) -> bool {
        let block = self
            .transaction
            .as_ref()
            .map(|transaction| transaction.block);
        block == Some(Block::Failed)
    }

    fn end(&mut self) {
        self.transaction = None;
        self.portals
            .retain(|_, portal| portal.keeping == Keeping::Held);
    }

    fn commit(&mut self, chain: Chain) -> Result<(), ServerError> {
        let mut next = None;
        if self.is_failed() {
            self.roll_back(chain);
            return Ok(());
        }
        if self.transaction.is_some() {
            self.hold_cursors()?;
        }
        if let Some(transaction) = &self.transaction {
            next = Some(transaction.access);
            self.settings.commit();
        }
        self.end();
        self.chain(chain, next);
        Ok(())
    }

    /// Runs the rest of cursors WITH HOLD, as a COMMIT does: `PreCommit_Portals` in `portalmem.c`. If that fails, so
    /// does the transaction.
    fn hold_cursors(&mut self) -> Result<(), ServerError> {
        let unheld = |(name, portal): (&String, &Portal)| {
            (portal.keeping == Keeping::UntilHeld).then(|| name.clone())
        };
        let names: Vec<_> = self.portals.iter().filter_map(unheld).collect();
        for name in names {
            if let Err(refusal) = self.run_portal(&name) {
                if let Some(transaction) = &mut self.transaction {
                    transaction.savepoints.clear();
                    transaction.block = Block::Implicit;
                }
                return Err(refusal);
            }
            if let Some(portal) = self.portals.get_mut(&name) {
                (portal.keeping, portal.depth) = (Keeping::Held, 0);
            }
        }
        Ok(())
    }

    fn roll_back(&mut self, chain: Chain) {
        let mut next = None;
        if let Some(transaction) = self.transaction.take() {
            next = Some(transaction.chained_access());
            self.settings = transaction.before;
        }
        self.end();
        self.chain(chain, next);
    }

    /// Begins a transaction with the mode of the one before.
    fn chain(&mut self, chain: Chain, access: Option<Access>) {
        if let (Chain::Yes, Some(access)) = (chain, access) {
            let transaction = self.start();
            transaction.block = Block::Open;
            (transaction.access, transaction.began) = (access, access);
        }
    }

    fn end_implicit(&mut self) -> Result<(), ServerError> {
        let block = self
            .transaction
            .as_ref()
            .map(|transaction| transaction.block);
        match block {
            Some(Block::Implicit) => self.commit(Chain::No),
            _ => Ok(()),
        }
    }

    /// Ends a request that is not skipped, whatever becomes of its transaction.
    fn end_request(&mut self) {
        if let Err(refusal) = self.end_implicit() {
            self.fail(refusal, Protocol::Simple);
        }
        self.ready();
    }

    fn on_query(&mut self, body: &[u8]) {
        self.statements.remove("");
        self.portals.remove("");
        let text = frontend::query(body).ok();
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let statements = match text {
            Some(text) => Sql::read(text),
            None => Err(("08P01", "invalid message format")),
        };
        match statements {
            Ok(statements) if statements.is_empty() => {
                self.say(b'I', &[]);
                self.end_request();
            }
            Ok(statements) => self.run_all(statements),
            Err(refusal) => {
                self.start();
                self.fail(refusal, Protocol::Simple);
                self.ready();
            }
        }
    }

    /// Runs the statements of a text, up to the data of a COPY.
    fn run_all(&mut self, mut statements: Vec<Sql>) {
        let are_several = statements.len() > 1;
        while !statements.is_empty() {
            let statement = statements.remove(0);
            let transaction = self.start();
            if are_several {
                transaction.company = Company::Text;
            }
            let shape = self.shape(Some(&statement));
            // A query describes its rows before it runs, unless planning it already fails.
            let says_first = statement.is_select() && statement != Sql::Divide && !self.is_failed();
            if says_first {
                self.say(b'T', &[0, 1]);
            }
            let ran = self.run(&statement);
            // The last statement is reported after its transaction has ended.
            let ended = match (&ran, statements.is_empty()) {
                (Ok(Ran::Done(..)), true) => self.end_implicit(),
                _ => Ok(()),
            };
            match ran {
                Ok(Ran::Done(rows, command_tag)) => {
                    if shape == Shape::Rows && !says_first {
                        self.say(b'T', &[0, 1]);
                    }
                    for row in rows {
                        self.say(b'D', &row);
                    }
                    if let Err(refusal) = ended {
                        self.fail(refusal, Protocol::Simple);
                        return self.ready();
                    }
                    self.say(b'C', &strings(&[&command_tag]));
                }
                Ok(Ran::Copies) => return self.wait_for_data(Protocol::Simple, statements),
                Err(refusal) => {
                    self.fail(refusal, Protocol::Simple);
                    return self.ready();
                }
            }
        }
        self.end_request();
    }

    /// Whether a statement returns rows in the current state.
    fn shape(&self, statement: Option<&Sql>) -> Shape {
        let has_rows = match statement {
            None => false,
            Some(Sql::Fetch) => self.portals.contains_key(CURSOR),
            Some(Sql::Execute(name)) => {
                let prepared = self.statements.get(name);
                prepared.is_some_and(|prepared| prepared.shape == Shape::Rows)
            }
            Some(Sql::ShowTransaction | Sql::Show(_)) => true,
            Some(other) => other.is_select(),
        };
        if has_rows { Shape::Rows } else { Shape::NoRows }
    }

    fn wait_for_data(&mut self, protocol: Protocol, rest: Vec<Sql>) {
        self.say(b'G', &[0, 0, 0]);
        self.flush();
        self.copy = Some(Copy {
            protocol,
            rows: 0,
            rest,
        });
    }

    fn read_copy(&mut self, tag: u8) {
        let Some(copy) = &mut self.copy else { return };
        match tag {
            b'd' => {
                copy.rows += 1;
                self.write();
            }
            b'H' | b'S' => {}
            b'c' => {
                let Some(Copy {
                    protocol,
                    rows,
                    rest,
                }) = self.copy.take()
                else {
                    return;
                };
                let ended = match (protocol, rest.is_empty()) {
                    (Protocol::Simple, true) => self.end_implicit(),
                    _ => Ok(()),
                };
                if let Err(refusal) = ended {
                    self.fail(refusal, protocol);
                    return self.ready();
                }
                self.say(b'C', &strings(&[&format!("COPY {rows}")]));
                match protocol {
                    Protocol::Simple => self.run_all(rest),
                    Protocol::Extended => self.start().company = Company::Pipeline,
                }
            }
            b'f' => {
                let protocol = copy.protocol;
                self.fail(("57014", "COPY from stdin failed"), protocol);
                if protocol == Protocol::Simple {
                    self.ready();
                }
            }
            _ => {
                self.say(
                    b'E',
                    &error_body("FATAL", "08P01", "unexpected message during COPY"),
                );
                self.flush();
                self.mode = Mode::Closed;
            }
        }
    }

    fn on_function_call(&mut self) {
        self.start();
        match self.may_write() {
            _ if self.is_failed() => self.fail(FAILED, Protocol::Simple),
            Ok(()) => {
                self.write();
                self.say(b'V', &[255; 4]);
                return self.end_request();
            }
            Err(refusal) => self.fail(refusal, Protocol::Simple),
        }
        self.ready();
    }

    fn on_extended(&mut self, tag: u8, body: &[u8]) -> Result<(), ServerError> {
        let malformed = ("08P01", "invalid message format");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match tag {
            b'P' => {
                let (name, sql) = frontend::parse(body).map_err(|_| malformed)?;
                self.on_parse(text(name), &text(sql))
            }
            b'B' => {
                let (portal, statement) = frontend::bind(body).ok_or(malformed)?;
                let parameters = frontend::bind_parameters(body).ok_or(malformed)?;
                self.on_bind(text(portal), &text(statement), parameters)
            }
            b'E' => {
                let portal = frontend::execute(body).map_err(|_| malformed)?;
                let rows = usize::from(body[body.len() - 1]);
                self.on_execute(&text(portal), rows)
            }
            b'D' => match frontend::target(tag, body).map_err(|_| malformed)? {
                Target::Statement(name) => self.describe_statement(&text(name)),
                Target::Portal(name) => self.describe_portal(&text(name)),
            },
            b'C' => {
                match frontend::target(tag, body).map_err(|_| malformed)? {
                    Target::Statement(name) => drop(self.statements.remove(&text(name))),
                    Target::Portal(name) => drop(self.portals.remove(&text(name))),
                }
                self.say(b'3', &[]);
                Ok(())
            }
            _ => Err(malformed),
        }
    }
}
