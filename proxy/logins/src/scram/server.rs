//! The server's side. The errors have PostgreSQL's words.

use super::{BOUND, Keys, Leg, MESSAGE_MAX, SCRAM, SCRAM_PLUS, ScramKey, attribute, is_nonce};
use crate::verifier::Account;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Refusals of a client. Only the last depends on the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginRefusal {
    #[error("client selected an invalid SASL authentication mechanism")]
    Mechanism,
    #[error("malformed SCRAM message")]
    Malformed(&'static str),
    /// The client asks for another identity than its user.
    #[error("client uses authorization identity, but it is not supported")]
    AuthorizationIdentity,
    #[error("client requires an unsupported SCRAM extension")]
    Extension,
    /// The client believes that channel binding was not offered: the offer may have been changed.
    #[error("SCRAM channel binding negotiation error")]
    Downgrade,
    #[error("unsupported SCRAM channel-binding type")]
    BindingType,
    #[error("SCRAM channel binding check failed")]
    Binding,
    /// Channel binding only in the last message.
    #[error("unexpected SCRAM channel-binding attribute in client-final-message")]
    UnexpectedBinding,
    #[error("invalid SCRAM response")]
    Nonce,
    /// The proof is wrong, or the account is a mock.
    #[error("password authentication failed")]
    Proof,
}

impl LoginRefusal {
    #[must_use]
    pub const fn sqlstate(&self) -> &'static str {
        match self {
            Self::Mechanism
            | Self::Malformed(_)
            | Self::BindingType
            | Self::UnexpectedBinding
            | Self::Nonce => "08P01",
            Self::AuthorizationIdentity | Self::Extension => "0A000",
            Self::Downgrade | Self::Binding => "28000",
            Self::Proof => "28P01",
        }
    }

    #[must_use]
    pub const fn detail(&self) -> &'static str {
        match self {
            Self::Malformed(detail) => detail,
            Self::Downgrade => {
                "The client supports SCRAM channel binding but thinks the server does not.  However, this server does \
                 support channel binding."
            }
            Self::Nonce => "Nonce does not match.",
            _ => "",
        }
    }
}

/// The offered mechanisms, the best first.
#[must_use]
pub fn mechanisms(leg: &Leg) -> &'static [&'static str] {
    match leg.end_point() {
        Some(_) => &[SCRAM_PLUS, SCRAM],
        None => &[SCRAM],
    }
}

#[derive(Debug)]
pub struct Offered {
    account: Account,
    leg: Leg,
    nonce: String,
}

#[derive(Debug)]
pub struct Challenged {
    account: Account,
    /// Expected channel binding of the last message, in base64.
    binding: String,
    nonce: String,
    /// The signed messages so far.
    said: String,
}

#[derive(Debug)]
pub struct Proven {
    pub keys: Keys,
    /// Data of AuthenticationSASLFinal, which proves that the server knows the password too.
    pub last: String,
}

enum Flag {
    Bound,
    Unbound(&'static str),
}

impl Offered {
    /// Begins an exchange. `nonce` is random, of visible ASCII without a comma.
    #[must_use]
    pub const fn new(account: Account, leg: Leg, nonce: String) -> Self {
        Self {
            account,
            leg,
            nonce,
        }
    }

    /// Takes the body of SASLInitialResponse, and returns the data of AuthenticationSASLContinue.
    pub fn challenge(self, body: &[u8]) -> Result<(Challenged, String), LoginRefusal> {
        let (mechanism, message) = initial_response(body)?;
        let is_plus = match mechanism {
            SCRAM => false,
            SCRAM_PLUS if self.leg.end_point().is_some() => true,
            _ => return Err(LoginRefusal::Mechanism),
        };
        let (flag, bare) = self.flag(message)?;
        let binding = match (flag, is_plus, self.leg.end_point()) {
            (Flag::Bound, true, Some(end_point)) => [BOUND.as_bytes(), end_point].concat(),
            (Flag::Unbound(header), false, _) => header.as_bytes().to_vec(),
            (Flag::Unbound(_), true, _) => {
                return Err(LoginRefusal::Malformed(
                    "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include channel binding \
                     data.",
                ));
            }
            (Flag::Bound, ..) => {
                return Err(LoginRefusal::Malformed(
                    "The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes \
                     channel binding data.",
                ));
            }
        };
        let nonce = format!("{}{}", client_nonce(bare)?, self.nonce);
        let verifier = self.account.verifier();
        let salt = STANDARD.encode(&verifier.salt);
        let challenge = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let challenged = Challenged {
            said: format!("{bare},{challenge},"),
            account: self.account,
            binding: STANDARD.encode(binding),
            nonce,
        };
        Ok((challenged, challenge))
    }

    fn flag<'a>(&self, message: &'a str) -> Result<(Flag, &'a str), LoginRefusal> {
        let (flag, rest) = message
            .split_once(',')
            .ok_or(LoginRefusal::Malformed("Comma expected in the GS2 header."))?;
        let flag = match flag {
            "n" => Flag::Unbound("n,,"),
            "y" if self.leg.end_point().is_some() => return Err(LoginRefusal::Downgrade),
            "y" => Flag::Unbound("y,,"),
            "p=tls-server-end-point" => Flag::Bound,
            other if other.starts_with("p=") => return Err(LoginRefusal::BindingType),
            _ => return Err(LoginRefusal::Malformed("Unexpected channel-binding flag.")),
        };
        match rest.strip_prefix(',') {
            Some(bare) => Ok((flag, bare)),
            None if rest.starts_with("a=") => Err(LoginRefusal::AuthorizationIdentity),
            None => Err(LoginRefusal::Malformed(
                "Unexpected attribute in client-first-message.",
            )),
        }
    }
}

fn initial_response(body: &[u8]) -> Result<(&str, &str), LoginRefusal> {
    const CUT: LoginRefusal =
        LoginRefusal::Malformed("Message length does not match input length.");
    let end = body.iter().position(|&byte| byte == 0).ok_or(CUT)?;
    let (mechanism, rest) = body.split_at(end);
    let mechanism = std::str::from_utf8(mechanism).map_err(|_| LoginRefusal::Mechanism)?;
    let (len, data) = rest
        .get(1..)
        .and_then(<[u8]>::split_first_chunk)
        .ok_or(CUT)?;
    if i32::from_be_bytes(*len) == -1 {
        // RFC 4422 allows an empty initial response. No client sends one.
        return Err(LoginRefusal::Malformed("The message is empty."));
    }
    if u32::try_from(data.len()).ok() != Some(u32::from_be_bytes(*len)) {
        return Err(CUT);
    }
    Ok((mechanism, text(data)?))
}

fn text(message: &[u8]) -> Result<&str, LoginRefusal> {
    if message.is_empty() {
        return Err(LoginRefusal::Malformed("The message is empty."));
    }
    if message.len() > MESSAGE_MAX {
        return Err(LoginRefusal::Malformed("The message is too long."));
    }
    let text = std::str::from_utf8(message).ok();
    text.filter(|text| !text.contains('\0'))
        .ok_or(LoginRefusal::Malformed("The message is not valid UTF-8."))
}

/// The nonce of a first message. Its user name does not count, as for PostgreSQL: the startup packet has it.
fn client_nonce(bare: &str) -> Result<&str, LoginRefusal> {
    if bare.starts_with("m=") {
        return Err(LoginRefusal::Extension);
    }
    let nonce = attribute(bare, 'n')
        .and_then(|(_, rest)| attribute(rest, 'r'))
        .map(|(nonce, _)| nonce)
        .ok_or(LoginRefusal::Malformed(
            "Attribute expected, but found something else.",
        ))?;
    if is_nonce(nonce) {
        Ok(nonce)
    } else {
        Err(LoginRefusal::Malformed(
            "Non-printable characters in SCRAM nonce.",
        ))
    }
}

impl Challenged {
    pub fn prove(self, body: &[u8]) -> Result<Proven, LoginRefusal> {
        const FORM: LoginRefusal =
            LoginRefusal::Malformed("Attribute expected, but found something else.");
        let message = text(body)?;
        let (unproved, proof) = message.rsplit_once(",p=").ok_or(FORM)?;
        let (binding, rest) = attribute(unproved, 'c').ok_or(FORM)?;
        let (nonce, _) = attribute(rest, 'r').ok_or(FORM)?;
        if binding != self.binding {
            return Err(match STANDARD.decode(&self.binding) {
                Ok(expected) if expected.starts_with(b"p=") => LoginRefusal::Binding,
                _ => LoginRefusal::UnexpectedBinding,
            });
        }
        if nonce != self.nonce {
            return Err(LoginRefusal::Nonce);
        }
        let proof = ScramKey::from_base64(proof).ok_or(LoginRefusal::Malformed(
            "Malformed proof in client-final-message.",
        ))?;
        let said = format!("{}{unproved}", self.said);
        let verifier = self.account.verifier();
        let client = proof.xor(&verifier.stored_key.sign(&said));
        let is_right = client.hash() == verifier.stored_key;
        let signature = verifier.server_key.sign(&said);
        match self.account {
            Account::Known(verifier) if is_right => Ok(Proven {
                last: format!("v={}", signature.base64()),
                keys: Keys {
                    salt: verifier.salt,
                    iterations: verifier.iterations,
                    client,
                    server: verifier.server_key,
                },
            }),
            _ => Err(LoginRefusal::Proof),
        }
    }
}
