//! A login that ends at the proxy: it authenticates the client, or asks for its password, and logs in to PostgreSQL
//! in the client's name. The client is admitted only after PostgreSQL's yes.
//!
//! The server speaks first. The client gets unchanged what the server says before its authentication request.

use std::io;

use bytes::{Bytes, BytesMut};
use pgpalisade_logins::scram::client::ServerFault;
use pgpalisade_logins::scram::server::{LoginRefusal, Offered, mechanisms};
use pgpalisade_logins::scram::{Leg, nonce};
use pgpalisade_logins::{
    Channel, Credentials, Password, Readers, ServerLogin, ServerLoginError, Step, end_point,
};
use pgpalisade_wire::backend::tag;
use pgpalisade_wire::encode::{self, Authentication};
use pgpalisade_wire::header::{self, HEADER_LEN};

use super::LoginError;
use super::authentication::{self, Authenticated, Legs, Opened, next_message};
use super::error::Unproved;
use super::startup::StartupRequest;
use crate::accounts::{Accounts, Logins};
use crate::pending_logins::PendingLogin;
use crate::transport::Socket;
use crate::worker::WorkerContext;

/// Size limits of a client's answer: PostgreSQL's `PG_MAX_SASL_MESSAGE_LENGTH` and `PG_MAX_AUTH_TOKEN_LENGTH`.
const SASL_MAX: usize = 1024;
const PASSWORD_MAX: usize = 65_535;

/// Authenticates a client by the configured method, and waits until the server is ready.
pub(super) async fn authenticate(
    legs: &mut Legs<'_>,
    shared: &WorkerContext,
    request: &StartupRequest,
    pending: &mut PendingLogin,
) -> Result<Authenticated, LoginError> {
    let mediator = Mediator {
        legs,
        user: &request.user(),
        pending,
        bytes: BytesMut::new(),
    };
    let opened = mediator.run(&shared.logins).await?;
    authentication::relay(legs, opened, pending).await
}

struct Mediator<'a, 'b> {
    legs: &'a mut Legs<'b>,
    user: &'a [u8],
    pending: &'a mut PendingLogin,
    bytes: BytesMut,
}

impl Mediator<'_, '_> {
    /// Runs both logins, and tells the client that it is authenticated.
    async fn run(mut self, logins: &Logins) -> Result<Opened, LoginError> {
        if let Logins::Relayed = logins {
            return Ok(Opened::Unauthenticated);
        }
        let request = self.request().await?;
        let (credentials, last) = match logins {
            Logins::Scram(accounts) => self.scram(accounts).await?,
            Logins::Password | Logins::Relayed => (self.password().await?, None),
        };
        self.log_in(credentials, request).await?;
        let mut out = BytesMut::new();
        if let Some(last) = last {
            encode::put(&mut out, &Authentication::SASLFinal(last.into()));
        }
        encode::put(&mut out, &Authentication::Ok);
        self.legs.client.write_all(&out).await?;
        Ok(Opened::Authenticated(self.bytes))
    }

    /// The server's next authentication message. Its other messages go to the client; an error ends the login.
    async fn request(&mut self) -> Result<Bytes, LoginError> {
        loop {
            let Some(message) = next_message(&mut self.bytes)? else {
                self.read_server().await?;
                continue;
            };
            match message.first().copied() {
                Some(tag::AUTHENTICATION) => return Ok(message),
                Some(b'E') => {
                    self.legs.client.write_all(&message).await?;
                    self.legs.client.shut_down_write();
                    return Err(LoginError::Answered);
                }
                _ => self.legs.client.write_all(&message).await?,
            }
        }
    }

    async fn read_server(&mut self) -> Result<(), LoginError> {
        match self.legs.server.read_more(&mut self.bytes).await {
            // The server has said nothing, and so does the proxy.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.legs.client.shut_down_write();
                Err(LoginError::Answered)
            }
            other => Ok(other?),
        }
    }

    /// Logs in to the server, beginning with its first request.
    async fn log_in(
        &mut self,
        credentials: Credentials,
        mut request: Bytes,
    ) -> Result<(), LoginError> {
        let server = &*self.legs.server;
        let certificate = server.peer_certificate();
        let channel = Channel {
            leg: leg(server, certificate.as_deref()),
            readers: readers(server),
        };
        let mut login = ServerLogin::new(self.user.to_vec(), credentials, channel);
        loop {
            let is_to_hash = login.is_to_hash();
            let answer = move || {
                let body = request.get(HEADER_LEN..).unwrap_or_default();
                let step = login.on_authentication(body, nonce(&rand::random()));
                (login, step)
            };
            // The server chooses the number of rounds, so hashing runs on another thread.
            let answered = if is_to_hash {
                let failed = || io::Error::other("the password could not be hashed");
                self.pending
                    .hashing()
                    .run(answer)
                    .await
                    .ok_or_else(failed)?
            } else {
                answer()
            };
            let step = answered.1;
            login = answered.0;
            match step.map_err(|error| self.not_let_in(error))? {
                Step::Done => return Ok(()),
                Step::Wait => {}
                Step::Send(body) => {
                    let mut out = BytesMut::new();
                    encode::put_raw(&mut out, b'p', &body);
                    self.legs.server.write_all(&out).await?;
                }
            }
            request = self.request().await?;
        }
    }

    async fn scram(
        &mut self,
        accounts: &Accounts,
    ) -> Result<(Credentials, Option<String>), LoginError> {
        let account = accounts.of(self.user).await.map_err(LoginError::Lookup)?;
        let shown = self.legs.shown.client.as_ref();
        let leg = leg(
            self.legs.client,
            shown.map(|leg| leg.acceptor.certificate()),
        );
        let names = mechanisms(&leg).iter().map(ToString::to_string);
        let offer = Authentication::SASL(names.collect());
        let answer = self.ask(&offer, SASL).await?;
        let offered = Offered::new(account, leg, nonce(&rand::random()));
        let challenge = offered.challenge(&answer);
        let (challenged, challenge) = challenge.map_err(|refusal| self.refused(refusal))?;
        let challenge = Authentication::SASLContinue(challenge.into());
        let proof = self.ask(&challenge, SASL).await?;
        let proven = challenged
            .prove(&proof)
            .map_err(|refusal| self.refused(refusal))?;
        Ok((Credentials::Keys(proven.keys), Some(proven.last)))
    }

    async fn password(&mut self) -> Result<Credentials, LoginError> {
        if readers(self.legs.client) == Readers::Anybody {
            return Err(LoginError::ReadablePassword);
        }
        let mut answer = self
            .ask(&Authentication::CleartextPassword, PASSWORD)
            .await?;
        let password = Password::take(&mut answer);
        let password = password.map_err(|error| LoginError::Unproved(Unproved::Form(error)))?;
        Ok(Credentials::Password(password))
    }

    /// Sends an authentication request to the client, and returns the body of its answer.
    async fn ask(
        &mut self,
        request: &Authentication,
        expected: Expected,
    ) -> Result<BytesMut, LoginError> {
        let mut out = BytesMut::new();
        encode::put(&mut out, request);
        self.legs.client.write_all(&out).await?;
        self.pending.owes();
        loop {
            let carry = &mut *self.legs.carry;
            if let Some(header) = header::parse(carry, |_| expected.max)? {
                if header.tag != b'p' {
                    return Err(LoginError::OutOfTurn(expected.what, header.tag));
                }
                if carry.len() >= header.frame_len() {
                    self.pending.answered();
                    let mut message = carry.split_to(header.frame_len());
                    return Ok(message.split_off(HEADER_LEN));
                }
            }
            tokio::select! {
                read = self.legs.client.read_more(carry) => read.map_err(LoginError::of_client)?,
                () = self.pending.given_up() => return Err(LoginError::Unanswered),
            }
        }
    }

    fn refused(&self, refusal: LoginRefusal) -> LoginError {
        match refusal {
            LoginRefusal::Proof => LoginError::Unproved(Unproved::Wrong(self.user_text())),
            refusal => LoginError::Scram(refusal),
        }
    }

    /// Hides that the verifier is out of date, or the login expired. PostgreSQL itself shows a mock verifier for
    /// expired logins.
    fn not_let_in(&self, error: ServerLoginError) -> LoginError {
        let user = self.user_text();
        match error {
            ServerLoginError::Scram(ServerFault::OtherVerifier) => {
                tracing::warn!(
                    user,
                    "the verifier known here is not PostgreSQL's: the password was changed, and auth_file must be \
                        updated; or the login has expired (VALID UNTIL)"
                );
                LoginError::Unproved(Unproved::Wrong(user))
            }
            error => LoginError::AtServer(user, error),
        }
    }

    fn user_text(&self) -> String {
        String::from_utf8_lossy(self.user).into_owned()
    }
}

#[derive(Clone, Copy)]
struct Expected {
    what: &'static str,
    max: usize,
}

const SASL: Expected = Expected {
    what: "SASL response",
    max: SASL_MAX,
};

const PASSWORD: Expected = Expected {
    what: "password response",
    max: PASSWORD_MAX,
};

/// The channel of a login, with the server side's certificate.
fn leg(socket: &Socket, certificate: Option<&[u8]>) -> Leg {
    if socket.is_encrypted() {
        Leg::Encrypted(certificate.and_then(end_point::hash))
    } else {
        Leg::Clear
    }
}

fn readers(socket: &Socket) -> Readers {
    if socket.is_encrypted() || socket.is_local() {
        Readers::Ends
    } else {
        Readers::Anybody
    }
}
