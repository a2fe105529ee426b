//! Statements and portals by name.

use std::collections::VecDeque;

use super::super::sql::{Keeping, ServerError, Snapshot, Sql, Step};
use super::{DIVISION, FAILED, NO_SETTING, Portal, Postgres, Prepared, Shape};

impl Postgres {
    pub(super) fn on_parse(&mut self, name: String, text: &str) -> Result<(), ServerError> {
        if name.is_empty() {
            self.statements.remove("");
        }
        let mut statements = Sql::read(text)?;
        let statement = statements.pop();
        if !statements.is_empty() {
            return Err((
                "42601",
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        self.analyse(statement.as_ref())?;
        if let Some(Sql::Show(setting)) = &statement
            && self.value(setting).is_none()
        {
            return Err(NO_SETTING);
        }
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(("42P05", "prepared statement already exists"));
        }
        let shape = self.shape(statement.as_ref());
        self.statements.insert(name, Prepared { statement, shape });
        self.say(b'1', &[]);
        Ok(())
    }

    fn analyse(&mut self, statement: Option<&Sql>) -> Result<(), ServerError> {
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

    pub(super) fn on_bind(
        &mut self,
        portal: String,
        statement: &str,
        parameters: u16,
    ) -> Result<(), ServerError> {
        let found = self.statements.get(statement).cloned();
        let Prepared { statement, .. } =
            found.ok_or(("26000", "prepared statement does not exist"))?;
        if parameters > 0 {
            return Err(("08P01", "bind message supplies parameters"));
        }
        if statement.is_none() && self.is_failed() {
            return Err(FAILED);
        }
        self.analyse(statement.as_ref())?;
        if !portal.is_empty() && self.portals.contains_key(&portal) {
            return Err(("42P03", "cursor already exists"));
        }
        // Bind plans the statement.
        if statement == Some(Sql::Divide) {
            return Err(DIVISION);
        }
        let bound = Portal {
            depth: self.start().savepoints.len(),
            shape: self.shape(statement.as_ref()),
            statement,
            keeping: Keeping::Transaction,
            command_tag: String::new(),
            ran: false,
            rows: VecDeque::new(),
        };
        self.portals.insert(portal, bound);
        self.say(b'2', &[]);
        Ok(())
    }

    pub(super) fn describe_statement(&mut self, name: &str) -> Result<(), ServerError> {
        let found = self.statements.get(name).map(|found| found.shape);
        let shape = found.ok_or(("26000", "prepared statement does not exist"))?;
        // In a failed transaction, a statement that returns rows is refused as a whole.
        if shape == Shape::Rows && self.is_failed() {
            return Err(FAILED);
        }
        self.say(b't', &[0, 0]);
        self.describe(shape)
    }

    pub(super) fn describe_portal(&mut self, name: &str) -> Result<(), ServerError> {
        let found = self.portals.get(name).map(|portal| portal.shape);
        let shape = found.ok_or(("34000", "portal does not exist"))?;
        self.describe(shape)
    }

    fn describe(&mut self, shape: Shape) -> Result<(), ServerError> {
        match shape {
            Shape::Rows if self.is_failed() => return Err(FAILED),
            Shape::Rows => self.say(b'T', &[0, 1]),
            Shape::NoRows => self.say(b'n', &[]),
        }
        Ok(())
    }
}
