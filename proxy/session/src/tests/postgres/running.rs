//! Execution of statements.

use std::collections::VecDeque;

use pgpalisade_policies::{Access, Chain};

use super::super::frames::{error_body, row, strings};
use super::super::sql::{
    Block, CURSOR, Company, DEFAULT_ACCESS, Keeping, Lifetime, ServerError, Snapshot, Sql, Step,
    TOKEN, Transaction,
};
use super::{DIVISION, FAILED, NO_SETTING, Portal, Postgres, Prepared, Protocol, Ran, Shape};

const NO_BLOCK: ServerError = ("25P01", "can only be used in transaction blocks");
const NO_SAVEPOINT: ServerError = ("3B001", "savepoint does not exist");
const NO_CURSOR: ServerError = ("34000", "cursor does not exist");
const READ_ONLY: ServerError = ("25006", "cannot execute in a read-only transaction");

impl Postgres {
    pub(super) fn on_execute(&mut self, name: &str, most: usize) -> Result<(), ServerError> {
        let portal = self
            .portals
            .get(name)
            .ok_or(("34000", "portal does not exist"))?;
        let (statement, ran, shape) = (portal.statement.clone(), portal.ran, portal.shape);
        let Some(statement) = statement else {
            self.say(b'I', &[]);
            return Ok(());
        };
        if self.is_failed() && !statement.ends_failure() {
            return Err(FAILED);
        }
        if ran && shape == Shape::NoRows {
            return Err(("55000", "portal cannot be run"));
        }
        if !ran {
            match self.run(&statement)? {
                Ran::Done(rows, command_tag) => {
                    // The portal may have ended with its transaction.
                    let Some(portal) = self.portals.get_mut(name) else {
                        self.say(b'C', &strings(&[&command_tag]));
                        return Ok(());
                    };
                    (portal.ran, portal.command_tag) = (true, command_tag);
                    // A statement that was expected to return no rows shows none.
                    if shape == Shape::Rows {
                        portal.rows = rows.into();
                    }
                    self.start().company = Company::Pipeline;
                }
                Ran::Copies => {
                    if let Some(portal) = self.portals.get_mut(name) {
                        portal.ran = true;
                    }
                    self.wait_for_data(Protocol::Extended, Vec::new());
                    return Ok(());
                }
            }
        }
        self.fetch(name, most);
        Ok(())
    }

    fn fetch(&mut self, name: &str, most: usize) {
        let Some(portal) = self.portals.get_mut(name) else {
            return;
        };
        let count = match most {
            0 => portal.rows.len(),
            most => most.min(portal.rows.len()),
        };
        let rows: Vec<_> = portal.rows.drain(..count).collect();
        // The count is that of this Execute.
        let command_tag = match portal.command_tag.split_once(' ') {
            Some((word @ ("SELECT" | "FETCH"), _)) => format!("{word} {count}"),
            _ => portal.command_tag.clone(),
        };
        let shape = portal.shape;
        for row in &rows {
            self.say(b'D', row);
        }
        if most > 0 && count == most && shape == Shape::Rows {
            self.say(b's', &[])
        } else {
            self.say(b'C', &strings(&[&command_tag]))
        }
    }

    /// Notes a write, or COPY data that amount to one.
    pub(super) fn write(&mut self) {
        let token = self.settings.get(TOKEN).unwrap_or_default().to_owned();
        self.writes.push(token);
        self.start().writes += 1;
    }

    pub(super) fn may_write(&mut self) -> Result<(), ServerError> {
        match self.start().access {
            Access::ReadOnly => Err(READ_ONLY),
            Access::ReadWrite => Ok(()),
        }
    }

    fn in_block(&mut self) -> Result<&mut Transaction, ServerError> {
        let transaction = self.start();
        match transaction.block {
            Block::Implicit => Err(NO_BLOCK),
            Block::Open | Block::Failed => Ok(transaction),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    pub(super) fn run(&mut self, statement: &Sql) -> Result<Ran, ServerError> {
        if self.is_failed() && !statement.ends_failure() {
            return Err(FAILED);
        }
        if statement.takes_snapshot(Step::Run) {
            self.start().snapshot = Snapshot::Taken;
        }
        let done = |command_tag: &str| Ok(Ran::Done(Vec::new(), command_tag.to_owned()));
        match statement {
            Sql::Select => Ok(one("1", "SELECT 1")),
            // Process id of every session in these tests.
            Sql::Process => Ok(one("7", "SELECT 1")),
            Sql::Hidden => {
                self.may_write()?;
                self.write();
                Ok(one("f", "SELECT 1"))
            }
            Sql::Switch(access) => {
                let value = Some(shown(*access));
                self.settings.set(DEFAULT_ACCESS, value, Lifetime::Session);
                let name = match access {
                    Access::ReadWrite => "g",
                    Access::ReadOnly => "h",
                };
                Ok(one(name, "SELECT 1"))
            }
            Sql::SwitchLocal => {
                self.settings
                    .set(DEFAULT_ACCESS, Some("off"), Lifetime::Local);
                Ok(one("l", "SELECT 1"))
            }
            Sql::Nothing => Ok(one("n", "SELECT 1")),
            Sql::Divide => Err(DIVISION),
            Sql::Insert => {
                self.may_write()?;
                self.write();
                done("INSERT 0 1")
            }
            Sql::Copy => {
                self.may_write()?;
                Ok(Ran::Copies)
            }
            Sql::Set(name, value, lifetime) => {
                if *lifetime == Lifetime::Local {
                    self.warn_outside("SET LOCAL can only be used in transaction blocks");
                }
                self.settings.set(name, value.as_deref(), *lifetime);
                done(if value.is_some() { "SET" } else { "RESET" })
            }
            Sql::ResetAll => {
                self.settings.reset_all();
                done("RESET")
            }
            Sql::DiscardAll => {
                let transaction = self.start();
                if transaction.block != Block::Implicit || transaction.company != Company::Alone {
                    return Err(("25001", "DISCARD ALL cannot run inside a transaction block"));
                }
                self.settings.reset_all();
                self.portals.clear();
                self.statements.retain(|name, _| name.is_empty());
                // Also in a pipeline, where the next message then begins another transaction.
                self.commit(Chain::No)?;
                done("DISCARD ALL")
            }
            Sql::SetTransaction(access) => {
                self.warn_outside("SET TRANSACTION can only be used in transaction blocks");
                self.start().set_access(*access)?;
                done("SET")
            }
            Sql::SetAccess(access) => {
                self.start().set_access(*access)?;
                done("SET")
            }
            Sql::ShowTransaction => Ok(one(shown(self.start().access), "SHOW")),
            Sql::Show(name) => {
                let value = self.value(name).ok_or(NO_SETTING)?;
                Ok(one(&value, "SHOW"))
            }
            Sql::Prepare(name, statement) => {
                if self.statements.contains_key(name) {
                    return Err(("42P05", "prepared statement already exists"));
                }
                let prepared = Prepared {
                    statement: Some((**statement).clone()),
                    shape: self.shape(Some(statement)),
                };
                self.statements.insert(name.clone(), prepared);
                done("PREPARE")
            }
            Sql::Execute(name) => {
                let prepared = self.statements.get(name).cloned();
                let statement = prepared.and_then(|prepared| prepared.statement);
                let statement = statement.ok_or(("26000", "prepared statement does not exist"))?;
                self.run(&statement)
            }
            Sql::Deallocate(name) => match self.statements.remove(name) {
                Some(_) => done("DEALLOCATE"),
                None => Err(("26000", "prepared statement does not exist")),
            },
            Sql::Declare(keeping, query) => self.declare(*keeping, query),
            Sql::Fetch | Sql::Move => self.run_cursor(statement),
            Sql::CloseCursor => match self.portals.remove(CURSOR) {
                Some(_) => done("CLOSE CURSOR"),
                None => Err(NO_CURSOR),
            },
            control => self.run_control(control),
        }
    }

    fn declare(&mut self, keeping: Keeping, query: &Sql) -> Result<Ran, ServerError> {
        if keeping == Keeping::Transaction && self.start().company != Company::Text {
            self.in_block()?;
        }
        if self.portals.contains_key(CURSOR) {
            return Err(("42P03", "cursor already exists"));
        }
        let declared = Portal {
            depth: self.start().savepoints.len(),
            statement: Some(query.clone()),
            keeping,
            shape: Shape::Rows,
            command_tag: String::new(),
            ran: false,
            rows: VecDeque::new(),
        };
        self.portals.insert(CURSOR.to_owned(), declared);
        Ok(Ran::Done(Vec::new(), "DECLARE CURSOR".to_owned()))
    }

    fn run_cursor(&mut self, statement: &Sql) -> Result<Ran, ServerError> {
        self.run_portal(CURSOR)?;
        let row = self
            .portals
            .get_mut(CURSOR)
            .and_then(|portal| portal.rows.pop_front());
        let count = usize::from(row.is_some());
        Ok(match statement {
            Sql::Move => Ran::Done(Vec::new(), format!("MOVE {count}")),
            _ => Ran::Done(row.into_iter().collect(), format!("FETCH {count}")),
        })
    }

    /// Makes a cursor find its rows, if it has not.
    pub(super) fn run_portal(&mut self, name: &str) -> Result<(), ServerError> {
        let portal = self.portals.get(name).ok_or(NO_CURSOR)?;
        if portal.ran {
            return Ok(());
        }
        let statement = portal.statement.clone();
        if let Some(statement) = statement
            && let Ran::Done(rows, _) = self.run(&statement)?
            && let Some(portal) = self.portals.get_mut(name)
        {
            (portal.ran, portal.rows) = (true, rows.into());
        }
        Ok(())
    }

    /// Runs a statement that begins, splits or ends a transaction.
    fn run_control(&mut self, statement: &Sql) -> Result<Ran, ServerError> {
        let mut command_tag = "ROLLBACK";
        match statement {
            Sql::Begin(access) => {
                command_tag = "BEGIN";
                if self.in_block().is_ok() {
                    self.warn("25001", "there is already a transaction in progress");
                }
                let transaction = self.start();
                // If its mode is refused, no block has begun.
                if let Some(access) = access {
                    transaction.set_access(*access)?;
                }
                transaction.block = Block::Open;
            }
            Sql::Commit(chain) => {
                self.may_end(*chain)?;
                if !self.is_failed() {
                    command_tag = "COMMIT";
                    if self.start().writes > 0 {
                        let token = self.settings.get(TOKEN).unwrap_or_default().to_owned();
                        self.writes.push(token);
                    }
                }
                self.commit(*chain)?;
            }
            Sql::Rollback(chain) => {
                self.may_end(*chain)?;
                self.roll_back(*chain);
            }
            Sql::Savepoint => {
                command_tag = "SAVEPOINT";
                let settings = self.settings.clone();
                let transaction = self.in_block()?;
                let access = transaction.access;
                transaction.savepoints.push((settings, access));
            }
            Sql::Release => {
                command_tag = "RELEASE";
                let transaction = self.in_block()?;
                let (_, access) = transaction.savepoints.pop().ok_or(NO_SAVEPOINT)?;
                // RELEASE undoes what was set inside: `CommitSubTransaction` in `xact.c`.
                transaction.access = access;
                let depth = transaction.savepoints.len();
                for portal in self.portals.values_mut() {
                    portal.depth = portal.depth.min(depth);
                }
            }
            Sql::RollbackTo => {
                let transaction = self.in_block()?;
                let last = transaction.savepoints.last().cloned();
                let (settings, access) = last.ok_or(NO_SAVEPOINT)?;
                transaction.access = access;
                transaction.block = Block::Open;
                let depth = transaction.savepoints.len();
                self.portals.retain(|_, portal| portal.depth < depth);
                self.settings = settings;
            }
            other => panic!("{other:?} is not about transactions"),
        }
        Ok(Ran::Done(Vec::new(), command_tag.to_owned()))
    }

    /// Outside a block there is nothing to end or to chain.
    fn may_end(&mut self, chain: Chain) -> Result<(), ServerError> {
        match (self.in_block().is_ok(), chain) {
            (false, Chain::Yes) => return Err(NO_BLOCK),
            (false, Chain::No) => self.warn("25P01", "there is no transaction in progress"),
            (true, _) => {}
        }
        Ok(())
    }

    /// Warns of a statement without effect outside a block. Several statements of one text count as a block here.
    fn warn_outside(&mut self, text: &str) {
        if self.in_block().is_err() && self.start().company != Company::Text {
            self.warn("25P01", text);
        }
    }

    fn warn(&mut self, sqlstate: &str, text: &str) {
        self.say(b'N', &error_body("WARNING", sqlstate, text));
    }
}

fn one(value: &str, command_tag: &str) -> Ran {
    Ran::Done(vec![row(value)], command_tag.to_owned())
}

const fn shown(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "on",
        Access::ReadWrite => "off",
    }
}
