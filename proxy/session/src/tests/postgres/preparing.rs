//! Statements and portals by their names.

use std::collections::VecDeque;

use super::super::sql::{CURSOR, Keeping, Refusal, Snapshot, Sql, Step};
use super::{FAILED, Portal, Postgres};

impl Postgres {
    pub(super) fn on_parse(&mut self, name: String, text: &str) -> Result<(), Refusal> {
        let mut statements = Sql::read(text)?;
        let statement = statements.pop();
        if !statements.is_empty() {
            return Err((
                "42601",
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        self.analyse(statement.as_ref())?;
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(("42P05", "prepared statement already exists"));
        }
        self.statements.insert(name, statement);
        self.say(b'1', &[]);
        Ok(())
    }

    fn analyse(&mut self, statement: Option<&Sql>) -> Result<(), Refusal> {
        let Some(statement) = statement else {
            return Ok(());
        };
        if self.is_failed() && !statement.ends_failure() {
            return Err(FAILED);
        }
        if statement.takes_snapshot(Step::Analyse) {
            self.start().snapshot = Snapshot::Taken;
        }
        Ok(())
    }

    pub(super) fn on_bind(&mut self, portal: String, statement: &str) -> Result<(), Refusal> {
        let found = self.statements.get(statement).cloned();
        let statement = found.ok_or(("26000", "prepared statement does not exist"))?;
        self.analyse(statement.as_ref())?;
        if !portal.is_empty() && self.portals.contains_key(&portal) {
            return Err(("42P03", "cursor already exists"));
        }
        let bound = Portal {
            depth: self.start().savepoints.len(),
            statement,
            keeping: Keeping::Transaction,
            ran: false,
            rows: VecDeque::new(),
        };
        self.portals.insert(portal, bound);
        self.say(b'2', &[]);
        Ok(())
    }

    pub(super) fn describe_statement(&mut self, name: &str) -> Result<(), Refusal> {
        let found = self.statements.get(name).cloned();
        let statement = found.ok_or(("26000", "prepared statement does not exist"))?;
        self.say(b't', &[0, 0]);
        self.describe(statement.as_ref())
    }

    pub(super) fn describe_portal(&mut self, name: &str) -> Result<(), Refusal> {
        let found = self
            .portals
            .get(name)
            .map(|portal| portal.statement.clone());
        let statement = found.ok_or(("34000", "portal does not exist"))?;
        self.describe(statement.as_ref())
    }

    fn describe(&mut self, statement: Option<&Sql>) -> Result<(), Refusal> {
        let has_rows = |statement: &Sql| match statement {
            Sql::Fetch => self.portals.contains_key(CURSOR),
            other => other.has_rows(),
        };
        match statement {
            Some(statement) if has_rows(statement) && self.is_failed() => Err(FAILED),
            Some(statement) if has_rows(statement) => {
                self.say(b'T', &[0, 1]);
                Ok(())
            }
            _ => {
                self.say(b'n', &[]);
                Ok(())
            }
        }
    }
}
