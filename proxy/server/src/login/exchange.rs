//! A client's side of a login that ends at the proxy: the proxy asks, and the client proves who it is.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pgpalisade_logins::scram::nonce;
use pgpalisade_logins::scram::server::{LoginRefusal, Offered, mechanisms};
use pgpalisade_logins::{Credentials, Password, Readers};
use pgpalisade_wire::encode::{self, Authentication};
use pgpalisade_wire::header::{self, HEADER_LEN};

use super::LoginError;
use crate::accounts::{Accounts, Logins};
use crate::backends::{channel_leg, readers};
use crate::certificates::Loaded;
use crate::pending_logins::PendingLogin;
use crate::transport::Socket;

/// Size limits of a client's answer: PostgreSQL's `PG_MAX_SASL_MESSAGE_LENGTH` and `PG_MAX_AUTH_TOKEN_LENGTH`.
const SASL_MAX: usize = 1024;
const PASSWORD_MAX: usize = 65_535;

/// What PostgreSQL calls an answer in SCRAM.
const SASL_RESPONSE: &str = "SASL response";

/// A client that has sent its startup packet.
pub(super) struct Exchange<'a> {
    pub(super) client: &'a mut Socket,
    /// Bytes that have come and are not read yet.
    pub(super) carry: BytesMut,
    pub(super) shown: &'a Loaded,
    pub(super) user: &'a [u8],
    pub(super) pending: &'a mut PendingLogin,
}

/// What a client has shown, which PostgreSQL must confirm.
pub(super) struct Proof {
    /// `None`: the client was asked for nothing.
    pub(super) credentials: Option<Arc<Credentials>>,
    /// Messages for a client that PostgreSQL lets in.
    pub(super) admission: Bytes,
}

impl Proof {
    fn new(credentials: Option<Credentials>, last: Option<String>) -> Self {
        let mut out = BytesMut::new();
        if let Some(last) = last {
            encode::put(&mut out, &Authentication::SASLFinal(last.into()));
        }
        encode::put(&mut out, &Authentication::Ok);
        Self {
            credentials: credentials.map(Arc::new),
            admission: out.freeze(),
        }
    }
}

impl Exchange<'_> {
    /// Has the client prove who it is, by the configured method.
    pub(super) async fn prove(&mut self, logins: &Logins) -> Result<Proof, LoginError> {
        match logins {
            Logins::Relayed(_) => Ok(Proof::new(None, None)),
            Logins::Scram(accounts) => self.scram(accounts).await,
            Logins::Password(_) => self.password().await,
        }
    }

    async fn scram(&mut self, accounts: &Accounts) -> Result<Proof, LoginError> {
        let account = accounts.of(self.user).await.map_err(LoginError::Lookup)?;
        let shown = self.shown.client.as_ref();
        let leg = channel_leg(self.client, shown.map(|leg| leg.acceptor.certificate()));
        let names = mechanisms(&leg).iter().map(ToString::to_string);
        let offer = Authentication::SASL(names.collect());
        let answer = self.ask(&offer, SASL_RESPONSE, SASL_MAX).await?;
        let offered = Offered::new(account, leg, nonce(&rand::random()));
        let challenge = offered.challenge(&answer);
        let (challenged, challenge) = challenge.map_err(|refusal| self.refused(refusal))?;
        let challenge = Authentication::SASLContinue(challenge.into());
        let proof = self.ask(&challenge, SASL_RESPONSE, SASL_MAX).await?;
        let proven = challenged
            .prove(&proof)
            .map_err(|refusal| self.refused(refusal))?;
        Ok(Proof::new(
            Some(Credentials::Keys(proven.keys)),
            Some(proven.last),
        ))
    }

    async fn password(&mut self) -> Result<Proof, LoginError> {
        if readers(self.client) == Readers::Anybody {
            return Err(LoginError::ReadablePassword);
        }
        let request = Authentication::CleartextPassword;
        let answer = self.ask(&request, "password response", PASSWORD_MAX);
        let mut answer = answer.await?;
        let password = Password::take(&mut answer);
        let password = password.map_err(LoginError::Password)?;
        Ok(Proof::new(Some(Credentials::Password(password)), None))
    }

    /// Sends an authentication request to the client, and returns the body of its answer.
    async fn ask(
        &mut self,
        request: &Authentication,
        expected: &'static str,
        max: usize,
    ) -> Result<BytesMut, LoginError> {
        let mut out = BytesMut::new();
        encode::put(&mut out, request);
        self.client.write_all(&out).await?;
        self.pending.owes();
        loop {
            let carry = &mut self.carry;
            if let Some(header) = header::parse(carry, |_| max)? {
                if header.tag != b'p' {
                    return Err(LoginError::OutOfTurn(expected, header.tag));
                }
                if carry.len() >= header.frame_len() {
                    self.pending.answered();
                    let mut message = carry.split_to(header.frame_len());
                    return Ok(message.split_off(HEADER_LEN));
                }
            }
            tokio::select! {
                read = self.client.read_more(carry) => read.map_err(LoginError::of_client)?,
                () = self.pending.given_up() => return Err(LoginError::Unanswered),
            }
        }
    }

    fn refused(&self, refusal: LoginRefusal) -> LoginError {
        match refusal {
            LoginRefusal::Proof => {
                let user = String::from_utf8_lossy(self.user).into_owned();
                LoginError::WrongPassword(user)
            }
            refusal => LoginError::Scram(refusal),
        }
    }
}
