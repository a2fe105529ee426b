//! The conversation with an operator: simple queries, and of the extended protocol what drivers send.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use super::command::Command;
use super::login::Operator;
use super::table::{Row, Rows, Table, put_row};
use super::{Console, Failure};
use crate::server::message_socket::{Message, MessageError, MessageSocket};
use crate::wire::WireError;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, Reply, Severity};
use crate::wire::frontend::{self, FrontendTag, Target};

/// Statements that one client may have prepared, and portals that it may have open.
const NAMES_MAX: usize = 64;

/// Who sends nothing for so long gives the place to others. psql connects anew by itself.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Rows are sent when there are so many bytes of them.
const SEND_AT: usize = 64 * 1024;

/// What was bound to a statement: it has no parameters.
struct Portal {
    /// `None` for an empty text.
    command: Option<Command>,
    formats: Vec<i16>,
    /// What is left of its rows, once it was executed.
    rows: Option<std::vec::IntoIter<Row>>,
}

/// What becomes of the messages up to the next Sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pipeline {
    Goes,
    /// One of them has failed, so the others are not looked at.
    Failed,
}

pub(super) struct Session {
    console: Arc<Console>,
    operator: Operator,
    link: MessageSocket,
    statements: HashMap<Vec<u8>, Option<Command>>,
    portals: HashMap<Vec<u8>, Portal>,
    pipeline: Pipeline,
}

/// Why a message was not done.
enum Undone {
    /// The client is told, and goes on.
    Failed(Failure),
    /// It is over.
    Ended(MessageError),
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<WireError> for Undone {
    fn from(error: WireError) -> Self {
        Self::Failed(Failure::new("08P01", error.to_string(), ""))
    }
}

impl From<io::Error> for Undone {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

impl Session {
    pub(super) fn new(console: Arc<Console>, operator: Operator, link: MessageSocket) -> Self {
        Self {
            console,
            operator,
            link,
            statements: HashMap::new(),
            portals: HashMap::new(),
            pipeline: Pipeline::Goes,
        }
    }

    /// Answers until the client leaves.
    pub(super) async fn run(mut self) {
        let ended = loop {
            let message = match self.link.message_within(IDLE_MAX).await {
                Ok(Some(message)) => message,
                Ok(None) => return,
                Err(error) => break error,
            };
            match self.on_message(&message).await {
                Ok(Next::Message) => {}
                Ok(Next::End) => return,
                Err(error) => break error,
            }
        };
        tracing::debug!(user = self.operator.user, error = %ended, "a connection to the console ended");
        if let Some(failure) = farewell(&ended) {
            failure.put(Severity::Fatal, &mut self.link.out);
            self.link.close().await;
        }
    }

    async fn on_message(&mut self, message: &Message) -> Result<Next, MessageError> {
        let tag = FrontendTag::from_byte(message.tag)?;
        let is_skipped = self.pipeline == Pipeline::Failed;
        let done = match tag {
            FrontendTag::Terminate => return Ok(Next::End),
            FrontendTag::Sync => {
                self.pipeline = Pipeline::Goes;
                // The end of a transaction, and of its portals.
                self.portals.clear();
                self.ready().await?;
                return Ok(Next::Message);
            }
            _ if is_skipped => return Ok(Next::Message),
            FrontendTag::Query => {
                let done = self.on_query(&message.body).await;
                let done = self.told(done);
                self.ready().await?;
                done?;
                return Ok(Next::Message);
            }
            FrontendTag::FunctionCall => {
                let failure = Failure::new("0A000", "the console has no functions", "");
                failure.put(Severity::Error, &mut self.link.out);
                self.ready().await?;
                return Ok(Next::Message);
            }
            FrontendTag::Flush => self.link.flush().await.map_err(Undone::from),
            FrontendTag::Parse => self.on_parse(&message.body),
            FrontendTag::Bind => self.on_bind(&message.body),
            FrontendTag::Describe => self.on_describe(&message.body),
            FrontendTag::Execute => self.on_execute(&message.body).await,
            FrontendTag::Close => self.on_close(&message.body),
            // As by PostgreSQL where no COPY is going on.
            FrontendTag::CopyData | FrontendTag::CopyDone | FrontendTag::CopyFail => Ok(()),
            FrontendTag::Password => return Err(WireError::UnknownFrontendTag(message.tag).into()),
        };
        let failed = matches!(done, Err(Undone::Failed(_)));
        self.told(done)?;
        if failed {
            self.pipeline = Pipeline::Failed;
        }
        if self.link.out.len() >= SEND_AT {
            self.link.flush().await?;
        }
        Ok(Next::Message)
    }

    /// Tells the client what has failed.
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
        encode::ready_for_query(&mut self.link.out, TransactionStatus::Idle);
        self.link.flush().await
    }

    async fn on_query(&mut self, body: &[u8]) -> Result<(), Undone> {
        let commands = Command::parse_all(text(frontend::query(body)?)?)?;
        if commands.is_empty() {
            encode::reply(&mut self.link.out, Reply::EmptyQuery);
        }
        for command in commands {
            if let Command::Show(table) = command {
                let rows = self.rows(table).await?;
                table.describe(&[], &mut self.link.out);
                self.send(rows.into_iter(), &[]).await?;
            } else {
                self.console.obey(command, &self.operator).await?;
            }
            encode::command_complete(&mut self.link.out, command.tag());
        }
        Ok(())
    }

    /// On a thread where nothing waits for it: tables may be long.
    async fn rows(&self, table: &'static Table) -> Result<Vec<Row>, Failure> {
        let console = Arc::clone(&self.console);
        let reading = match table.rows {
            Rows::Asked(ask) => {
                let hint = "SHOW AUTHORITY shows the reason.";
                let unanswered = |why: String| Failure::new("08006", &why, hint);
                return ask(&console.facts).await.map_err(unanswered);
            }
            Rows::Known(read) => tokio::task::spawn_blocking(move || read(&console.facts)),
            Rows::Many(read) => tokio::task::spawn_blocking(move || read(&console.facts).collect()),
        };
        let failed = |error: tokio::task::JoinError| {
            tracing::error!(%error, table = table.name, "the console");
            Failure::new(
                "58000",
                "the table could not be read",
                "See the log of pgpalisade.",
            )
        };
        reading.await.map_err(failed)
    }

    async fn send(&mut self, rows: impl Iterator<Item = Row>, formats: &[i16]) -> io::Result<()> {
        for row in rows {
            put_row(&row, formats, &mut self.link.out);
            if self.link.out.len() >= SEND_AT {
                self.link.flush().await?;
            }
        }
        Ok(())
    }

    fn on_parse(&mut self, body: &[u8]) -> Result<(), Undone> {
        let (name, said) = frontend::parse(body)?;
        let commands = Command::parse_all(text(said)?)?;
        let command = match commands.as_slice() {
            [] => None,
            [command] => Some(*command),
            _ => {
                let message = "cannot insert multiple commands into a prepared statement";
                return Err(Failure::new("42601", message, "").into());
            }
        };
        if self.statements.contains_key(name) && !name.is_empty() {
            return Err(Failure::new("42P05", "the prepared statement already exists", "").into());
        }
        if self.statements.len() >= NAMES_MAX && !self.statements.contains_key(name) {
            return Err(too_many("statements").into());
        }
        self.statements.insert(name.to_vec(), command);
        encode::reply(&mut self.link.out, Reply::ParseComplete);
        Ok(())
    }

    fn on_bind(&mut self, body: &[u8]) -> Result<(), Undone> {
        let malformed = WireError::Malformed(b'B');
        let (portal, statement) = frontend::bind(body).ok_or(malformed)?;
        let command = *self.statements.get(statement).ok_or_else(no_statement)?;
        if frontend::bind_parameters(body).is_none_or(|count| count != 0) {
            return Err(
                Failure::new("08P01", "commands of the console have no parameters", "").into(),
            );
        }
        let formats = frontend::result_formats(body)?;
        let takes = match command {
            Some(Command::Show(table)) => table.takes(&formats),
            _ => true,
        };
        if !takes {
            return Err(
                Failure::new("08P01", "the result formats do not fit the columns", "").into(),
            );
        }
        if self.portals.contains_key(portal) && !portal.is_empty() {
            return Err(Failure::new("42P03", "the portal already exists", "").into());
        }
        if self.portals.len() >= NAMES_MAX && !self.portals.contains_key(portal) {
            return Err(too_many("portals").into());
        }
        let bound = Portal {
            command,
            formats,
            rows: None,
        };
        self.portals.insert(portal.to_vec(), bound);
        encode::reply(&mut self.link.out, Reply::BindComplete);
        Ok(())
    }

    fn on_describe(&mut self, body: &[u8]) -> Result<(), Undone> {
        let out = &mut self.link.out;
        let (command, formats) = match frontend::target(b'D', body)? {
            Target::Statement(name) => {
                let command = self.statements.get(name).ok_or_else(no_statement)?;
                encode::no_parameters(out);
                (*command, &[][..])
            }
            Target::Portal(name) => {
                let portal = self.portals.get(name).ok_or_else(no_portal)?;
                (portal.command, &*portal.formats)
            }
        };
        match command {
            Some(Command::Show(table)) => table.describe(formats, out),
            _ => encode::reply(out, Reply::NoData),
        }
        Ok(())
    }

    async fn on_execute(&mut self, body: &[u8]) -> Result<(), Undone> {
        let (name, limit) = (frontend::execute(body)?, frontend::row_limit(body)?);
        let portal = self.portals.get_mut(name).ok_or_else(no_portal)?;
        let (formats, left) = (portal.formats.clone(), portal.rows.take());
        let Some(command) = portal.command else {
            encode::reply(&mut self.link.out, Reply::EmptyQuery);
            return Ok(());
        };
        if let Command::Show(table) = command {
            let mut rows = match left {
                Some(rows) => rows,
                None => self.rows(table).await?.into_iter(),
            };
            let most = match limit {
                0 => usize::MAX,
                limit => limit as usize,
            };
            self.send(rows.by_ref().take(most), &formats).await?;
            let is_over = rows.len() == 0;
            if let Some(portal) = self.portals.get_mut(name) {
                portal.rows = Some(rows);
            }
            if !is_over {
                encode::reply(&mut self.link.out, Reply::PortalSuspended);
                return Ok(());
            }
        } else {
            self.console.obey(command, &self.operator).await?;
        }
        encode::command_complete(&mut self.link.out, command.tag());
        Ok(())
    }

    fn on_close(&mut self, body: &[u8]) -> Result<(), Undone> {
        // As by PostgreSQL, what is not there can be closed.
        match frontend::target(b'C', body)? {
            Target::Statement(name) => drop(self.statements.remove(name)),
            Target::Portal(name) => drop(self.portals.remove(name)),
        }
        encode::reply(&mut self.link.out, Reply::CloseComplete);
        Ok(())
    }
}

/// What comes behind a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Message,
    End,
}

/// What a client is told at its end, if it hears anything.
fn farewell(ended: &MessageError) -> Option<Failure> {
    match ended {
        MessageError::Wire(error) => Some(Failure::new("08P01", error.to_string(), "")),
        // PostgreSQL's own words.
        MessageError::Idle => {
            let message = "terminating connection due to idle-session timeout";
            Some(Failure::new("57P05", message, ""))
        }
        MessageError::Io(_) => None,
    }
}

fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(|_| Failure::new("22021", "the text is not UTF8", ""))
}

fn no_statement() -> Failure {
    Failure::new("26000", "the prepared statement does not exist", "")
}

fn no_portal() -> Failure {
    Failure::new("34000", "the portal does not exist", "")
}

fn too_many(what: &str) -> Failure {
    let message = format!("a client of the console may have {NAMES_MAX} {what}");
    Failure::new("54000", message, "Close some, or use those without a name.")
}

impl Failure {
    pub(super) fn put(&self, severity: Severity, out: &mut BytesMut) {
        let fields = encode::ErrorFields {
            severity,
            sqlstate: self.sqlstate,
            message: &self.message,
            detail: "",
            hint: self.hint,
        };
        encode::error_response(out, &fields);
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
