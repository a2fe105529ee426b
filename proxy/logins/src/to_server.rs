//! A login at PostgreSQL for a client, by the server's method.

use std::fmt;
use std::sync::Arc;

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use crate::kind;
use crate::password::Password;
use crate::scram::client::{Answered, Begun, Choice, ServerFault};
use crate::scram::{Keys, Leg};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    Keys(Keys),
    Password(Password),
}

/// Errors of a login before the server decides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerLoginError {
    #[error(
        "PostgreSQL asks for {0}, but with SCRAM between client and pgpalisade no password is known"
    )]
    NeedsPassword(&'static str),
    #[error(
        "PostgreSQL asks for the password in clear text, but the connection to it is not encrypted"
    )]
    Readable,
    #[error("PostgreSQL asks for an authentication method that is not supported (code {0})")]
    Method(i32),
    #[error("SCRAM with PostgreSQL failed: {0}")]
    Scram(#[from] ServerFault),
    /// SCRAM with a password failed, in the library's words.
    #[error("SCRAM with PostgreSQL failed: {0}")]
    Library(String),
    #[error("PostgreSQL sent an unexpected authentication message (code {0})")]
    Unexpected(i32),
}

/// The next step after a message of the server.
#[derive(Debug)]
pub enum Step {
    /// The body of a message (`p`).
    Send(Vec<u8>),
    Wait,
    Done,
}

pub struct ServerLogin {
    user: Vec<u8>,
    leg: Channel,
    credentials: Arc<Credentials>,
    state: LoginState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    pub leg: Leg,
    pub readers: Readers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    Ends,
    Anybody,
}

enum LoginState {
    Begun,
    Answered,
    ByKeys(Begun),
    ByKeysAnswered(Answered),
    ByPassword(Box<ScramSha256>),
    ByPasswordAnswered(Box<ScramSha256>),
    Over,
}

impl fmt::Debug for ServerLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLogin").finish_non_exhaustive()
    }
}

impl ServerLogin {
    /// Begins a login, for the user of the startup packet.
    #[must_use]
    pub const fn new(user: Vec<u8>, credentials: Arc<Credentials>, leg: Channel) -> Self {
        Self {
            user,
            leg,
            credentials,
            state: LoginState::Begun,
        }
    }

    /// Whether the server's next message requires hashing the password, in as many rounds as the server says.
    #[must_use]
    pub const fn is_to_hash(&self) -> bool {
        matches!(self.state, LoginState::ByPassword(_))
    }

    /// Takes the body of an authentication message (`R`). `nonce` is random, of visible ASCII without a comma.
    pub fn on_authentication(
        &mut self,
        body: &[u8],
        nonce: String,
    ) -> Result<Step, ServerLoginError> {
        let Some((kind, data)) = body.split_first_chunk() else {
            return Err(ServerLoginError::Unexpected(-1));
        };
        let kind = i32::from_be_bytes(*kind);
        let unexpected = ServerLoginError::Unexpected(kind);
        match (std::mem::replace(&mut self.state, LoginState::Over), kind) {
            // A server that requests nothing admits everybody.
            (LoginState::Begun | LoginState::Answered, kind::OK) => Ok(Step::Done),
            (LoginState::Begun, kind::CLEARTEXT_PASSWORD) => self.cleartext(),
            (LoginState::Begun, kind::MD5_PASSWORD) => {
                self.md5(data.first_chunk().ok_or(unexpected)?)
            }
            (LoginState::Begun, kind::SASL) => self.begin_scram(data, nonce),
            (LoginState::Begun, other) => Err(ServerLoginError::Method(other)),
            (LoginState::ByKeys(begun), kind::SASL_CONTINUE) => {
                let (answered, message) = begun.answer(data)?;
                self.state = LoginState::ByKeysAnswered(answered);
                Ok(Step::Send(message.into_bytes()))
            }
            (LoginState::ByKeysAnswered(answered), kind::SASL_FINAL) => {
                answered.verify(data)?;
                self.state = LoginState::Answered;
                Ok(Step::Wait)
            }
            (LoginState::ByPassword(mut scram), kind::SASL_CONTINUE) => {
                scram.update(data).map_err(library)?;
                let message = scram.message().to_vec();
                self.state = LoginState::ByPasswordAnswered(scram);
                Ok(Step::Send(message))
            }
            (LoginState::ByPasswordAnswered(mut scram), kind::SASL_FINAL) => {
                scram.finish(data).map_err(library)?;
                self.state = LoginState::Answered;
                Ok(Step::Wait)
            }
            _ => Err(unexpected),
        }
    }

    fn cleartext(&mut self) -> Result<Step, ServerLoginError> {
        match (&*self.credentials, self.leg.readers) {
            (Credentials::Keys(_), _) => Err(ServerLoginError::NeedsPassword("the password")),
            (Credentials::Password(_), Readers::Anybody) => Err(ServerLoginError::Readable),
            (Credentials::Password(password), Readers::Ends) => {
                self.state = LoginState::Answered;
                Ok(Step::Send([password.expose(), b"\0"].concat()))
            }
        }
    }

    fn md5(&mut self, salt: &[u8; 4]) -> Result<Step, ServerLoginError> {
        let Credentials::Password(password) = &*self.credentials else {
            return Err(ServerLoginError::NeedsPassword(
                "an MD5 hash of the password",
            ));
        };
        let mut body = md5_hash(&self.user, password.expose(), *salt).into_bytes();
        body.push(0);
        self.state = LoginState::Answered;
        Ok(Step::Send(body))
    }

    fn begin_scram(&mut self, names: &[u8], nonce: String) -> Result<Step, ServerLoginError> {
        let choice = Choice::of(names, &self.leg.leg)?;
        let first = match &*self.credentials {
            Credentials::Keys(keys) => {
                let (begun, first) = Begun::new(keys.clone(), &choice, nonce);
                self.state = LoginState::ByKeys(begun);
                first.into_bytes()
            }
            Credentials::Password(password) => {
                let scram = ScramSha256::new(password.expose(), binding(&choice));
                let first = scram.message().to_vec();
                self.state = LoginState::ByPassword(Box::new(scram));
                first
            }
        };
        let len = u32::try_from(first.len()).unwrap_or(u32::MAX);
        let mechanism = choice.mechanism.as_bytes();
        Ok(Step::Send(
            [mechanism, b"\0", &len.to_be_bytes(), &first].concat(),
        ))
    }
}

/// In the library's words `unrequested` is `y`, and `unsupported` is `n`.
fn binding(choice: &Choice) -> ChannelBinding {
    match choice.header {
        "y,," => ChannelBinding::unrequested(),
        "n,," => ChannelBinding::unsupported(),
        _ => ChannelBinding::tls_server_end_point(choice.end_point.clone()),
    }
}

/// The library's errors quote only the server.
fn library(error: std::io::Error) -> ServerLoginError {
    ServerLoginError::Library(error.to_string())
}

#[cfg(test)]
mod tests;
