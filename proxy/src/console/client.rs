//! The conversation with an operator, by the simple and the extended protocol.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_server::message_socket::{Message, MessageError, MessageSocket};
use pgpalisade_wire::WireError;
use pgpalisade_wire::backend::TransactionStatus;
use pgpalisade_wire::encode::{
    self, BindComplete, CloseComplete, CommandComplete, EmptyQueryResponse, ErrorResponse, NoData,
    ParameterDescription, ParseComplete, PortalSuspended, ReadyForQuery, RowDescription, Severity,
};
use pgpalisade_wire::frontend::{
    Bind, Close, Describe, Execute, FrontendTag, Parse, Query, TARGET_TYPE_BYTE_STATEMENT, read,
};

use super::command::Command;
use super::login::Operator;
use super::table::{Row, Table, data_row};
use super::{Console, ConsoleError};

/// Limit of a client's prepared statements, and of its portals.
const NAMES_MAX: usize = 64;

/// An idle client gives its place to others. psql reconnects on its own.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// PostgreSQL's own words.
const IDLE: &str = "terminating connection due to idle-session timeout";

/// Rows are sent in pieces of about so many bytes.
const SEND_AT: usize = 64 * 1024;

struct Portal {
    /// `None` for an empty text.
    command: Option<Command>,
    formats: Vec<i16>,
    rows: Option<std::vec::IntoIter<Row>>,
}

pub(super) struct ConsoleClient {
    console: Arc<Console>,
    operator: Operator,
    link: MessageSocket,
    statements: HashMap<String, Option<Command>>,
    portals: HashMap<String, Portal>,
    /// A message has failed, so the others up to Sync are skipped.
    has_failed: bool,
}

/// Failures of a message.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Undone {
    /// The client receives the error, and continues.
    Failed(#[from] ConsoleError),
    /// The connection has ended.
    Ended(MessageError),
}

impl From<WireError> for Undone {
    fn from(error: WireError) -> Self {
        Self::Failed(ConsoleError::new("08P01", error.to_string()))
    }
}

impl From<io::Error> for Undone {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

impl ConsoleClient {
    pub(super) fn new(console: Arc<Console>, operator: Operator, link: MessageSocket) -> Self {
        Self {
            console,
            operator,
            link,
            statements: HashMap::new(),
            portals: HashMap::new(),
            has_failed: false,
        }
    }

    pub(super) async fn run(mut self) {
        let ended = loop {
            let message = match self.link.message_within(IDLE_MAX).await {
                Ok(Some(message)) => message,
                Ok(None) => return,
                Err(error) => break error,
            };
            match self.on_message(message).await {
                Ok(Continue(())) => {}
                Ok(Break(())) => return,
                Err(error) => break error,
            }
        };
        tracing::debug!(user = self.operator.user, error = %ended, "a connection to the console ended");
        if let Some(failure) = farewell(&ended) {
            failure.put(Severity::Fatal, &mut self.link.out);
            self.link.close().await;
        }
    }

    async fn on_message(&mut self, message: Message) -> Result<ControlFlow<()>, MessageError> {
        let tag = FrontendTag::from_byte(message.tag)?;
        let done = match tag {
            FrontendTag::Terminate => return Ok(Break(())),
            FrontendTag::Sync => {
                self.has_failed = false;
                // Sync ends the transaction, and its portals.
                self.portals.clear();
                self.ready().await?;
                return Ok(Continue(()));
            }
            _ if self.has_failed => return Ok(Continue(())),
            FrontendTag::Query => {
                let done = self.on_query(message.body).await;
                let done = self.told(done);
                self.ready().await?;
                done?;
                return Ok(Continue(()));
            }
            FrontendTag::FunctionCall => {
                let failure = ConsoleError::new("0A000", "the console has no functions");
                failure.put(Severity::Error, &mut self.link.out);
                self.ready().await?;
                return Ok(Continue(()));
            }
            FrontendTag::Flush => self.link.flush().await.map_err(Undone::from),
            FrontendTag::Parse => self.on_parse(message.body),
            FrontendTag::Bind => self.on_bind(message.body),
            FrontendTag::Describe => self.on_describe(message.body),
            FrontendTag::Execute => self.on_execute(message.body).await,
            FrontendTag::Close => self.on_close(message.body),
            // As PostgreSQL outside of COPY.
            FrontendTag::CopyData | FrontendTag::CopyDone | FrontendTag::CopyFail => Ok(()),
            FrontendTag::Password => return Err(WireError::UnknownFrontendTag(message.tag).into()),
        };
        self.has_failed = matches!(done, Err(Undone::Failed(_)));
        self.told(done)?;
        if self.link.out.len() >= SEND_AT {
            self.link.flush().await?;
        }
        Ok(Continue(()))
    }

    fn told(&mut self, done: Result<(), Undone>) -> Result<(), MessageError> {
        match done {
            Ok(()) => Ok(()),
            Err(Undone::Failed(failure)) => {
                failure.put(Severity::Error, &mut self.link.out);
                Ok(())
            }
            Err(Undone::Ended(error)) => Err(error),
        }
    }

    async fn ready(&mut self) -> io::Result<()> {
        self.put(&ReadyForQuery::new(TransactionStatus::Idle.into()));
        self.link.flush().await
    }

    fn put(&mut self, message: &impl encode::Message) {
        encode::put(&mut self.link.out, message);
    }

    async fn on_query(&mut self, body: BytesMut) -> Result<(), Undone> {
        let commands = Command::parse_all(&read::<Query>(body)?.query)?;
        if commands.is_empty() {
            self.put(&EmptyQueryResponse::new());
        }
        for command in commands {
            if let Command::Show(table) = command {
                let rows = self.rows(table).await?;
                self.put(&table.description(&[]));
                self.send(rows.into_iter(), &[]).await?;
            } else {
                self.console.obey(command, &self.operator).await?;
            }
            self.put(&CommandComplete::new(command.tag().into()));
        }
        Ok(())
    }

    async fn rows(&self, table: &'static Table) -> Result<Vec<Row>, ConsoleError> {
        table.read(&self.console.facts, Iterator::collect).await
    }

    async fn send(&mut self, rows: impl Iterator<Item = Row>, formats: &[i16]) -> io::Result<()> {
        for row in rows {
            self.put(&data_row(&row, formats));
            if self.link.out.len() >= SEND_AT {
                self.link.flush().await?;
            }
        }
        Ok(())
    }

    fn on_parse(&mut self, body: BytesMut) -> Result<(), Undone> {
        let parse: Parse = read(body)?;
        let name = parse.name.unwrap_or_default();
        let commands = Command::parse_all(&parse.query)?;
        let command = match commands.as_slice() {
            [] => None,
            [command] => Some(*command),
            _ => {
                let message = "cannot insert multiple commands into a prepared statement";
                return Err(ConsoleError::new("42601", message).into());
            }
        };
        let taken = ConsoleError::new("42P05", "the prepared statement already exists");
        has_room(&self.statements, &name, "statements", taken)?;
        self.statements.insert(name, command);
        self.put(&ParseComplete::new());
        Ok(())
    }

    fn on_bind(&mut self, body: BytesMut) -> Result<(), Undone> {
        let bind: Bind = read(body)?;
        let portal = bind.portal_name.unwrap_or_default();
        let statement = bind.statement_name.unwrap_or_default();
        let command = *self.statements.get(&statement).ok_or_else(no_statement)?;
        if !bind.parameters.is_empty() {
            let message = "commands of the console have no parameters";
            return Err(ConsoleError::new("08P01", message).into());
        }
        let formats = bind.result_column_format_codes;
        if let Some(Command::Show(table)) = command
            && !table.takes(&formats)
        {
            let message = "the result formats do not fit the columns";
            return Err(ConsoleError::new("08P01", message).into());
        }
        let taken = ConsoleError::new("42P03", "the portal already exists");
        has_room(&self.portals, &portal, "portals", taken)?;
        let bound = Portal {
            command,
            formats,
            rows: None,
        };
        self.portals.insert(portal, bound);
        self.put(&BindComplete::new());
        Ok(())
    }

    fn on_describe(&mut self, body: BytesMut) -> Result<(), Undone> {
        let describe: Describe = read(body)?;
        let name = describe.name.unwrap_or_default();
        let described = |command, formats| match command {
            Some(Command::Show(table)) => Some(Table::description(table, formats)),
            _ => None,
        };
        let description: Option<RowDescription> =
            if describe.target_type == TARGET_TYPE_BYTE_STATEMENT {
                let command = *self.statements.get(&name).ok_or_else(no_statement)?;
                self.put(&ParameterDescription::new(Vec::new()));
                described(command, &[])
            } else {
                let portal = self.portals.get(&name).ok_or_else(no_portal)?;
                described(portal.command, &portal.formats)
            };
        match description {
            Some(description) => self.put(&description),
            None => self.put(&NoData::new()),
        }
        Ok(())
    }

    async fn on_execute(&mut self, body: BytesMut) -> Result<(), Undone> {
        let execute: Execute = read(body)?;
        let name = execute.name.unwrap_or_default();
        let portal = self.portals.get_mut(&name).ok_or_else(no_portal)?;
        let (formats, left) = (portal.formats.clone(), portal.rows.take());
        let Some(command) = portal.command else {
            self.put(&EmptyQueryResponse::new());
            return Ok(());
        };
        if let Command::Show(table) = command {
            let mut rows = match left {
                Some(rows) => rows,
                None => self.rows(table).await?.into_iter(),
            };
            // As in PostgreSQL, zero and less mean all.
            let most = match usize::try_from(execute.max_rows) {
                Ok(most @ 1..) => most,
                _ => usize::MAX,
            };
            self.send(rows.by_ref().take(most), &formats).await?;
            let is_over = rows.len() == 0;
            if let Some(portal) = self.portals.get_mut(&name) {
                portal.rows = Some(rows);
            }
            if !is_over {
                self.put(&PortalSuspended::new());
                return Ok(());
            }
        } else {
            self.console.obey(command, &self.operator).await?;
        }
        self.put(&CommandComplete::new(command.tag().into()));
        Ok(())
    }

    fn on_close(&mut self, body: BytesMut) -> Result<(), Undone> {
        let close: Close = read(body)?;
        let name = close.name.unwrap_or_default();
        // As in PostgreSQL, closing a missing name succeeds.
        if close.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.statements.remove(&name);
        } else {
            self.portals.remove(&name);
        }
        self.put(&CloseComplete::new());
        Ok(())
    }
}

/// Last error, for a client that can still receive one.
fn farewell(ended: &MessageError) -> Option<ConsoleError> {
    match ended {
        MessageError::Wire(error) => Some(ConsoleError::new("08P01", error.to_string())),
        MessageError::Idle => Some(ConsoleError::new("57P05", IDLE)),
        MessageError::Io(_) => None,
    }
}

fn no_statement() -> ConsoleError {
    ConsoleError::new("26000", "the prepared statement does not exist")
}

fn no_portal() -> ConsoleError {
    ConsoleError::new("34000", "the portal does not exist")
}

/// Whether one more can have this name. The empty name is given again and again.
fn has_room<T>(
    names: &HashMap<String, T>,
    name: &str,
    what: &str,
    taken: ConsoleError,
) -> Result<(), ConsoleError> {
    if names.contains_key(name) {
        return name.is_empty().then_some(()).ok_or(taken);
    }
    if names.len() < NAMES_MAX {
        return Ok(());
    }
    let message = format!("a client of the console may have {NAMES_MAX} {what}");
    Err(ConsoleError::new("54000", message).hint("Close some, or use those without a name."))
}

impl ConsoleError {
    pub(super) fn put(&self, severity: Severity, out: &mut BytesMut) {
        let fields = encode::ErrorFields {
            severity,
            sqlstate: self.sqlstate,
            message: &self.message,
            detail: "",
            hint: self.hint,
        };
        encode::put(out, &ErrorResponse::from(&fields));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hears_why_it_is_over() {
        for (ended, sqlstate) in [
            (MessageError::Idle, Some("57P05")),
            (WireError::UnknownFrontendTag(b'p').into(), Some("08P01")),
            (io::Error::from(io::ErrorKind::BrokenPipe).into(), None),
        ] {
            assert_eq!(farewell(&ended).map(|told| told.sqlstate), sqlstate);
        }
    }
}
