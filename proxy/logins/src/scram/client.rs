//! The client's side, with keys from another client's proof instead of the password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{BOUND, Keys, Leg, MESSAGE_MAX, SCRAM, SCRAM_PLUS, ScramKey, attribute, is_nonce};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerFault {
    #[error("it offers no supported SASL mechanism")]
    Mechanism,
    #[error("it sent a malformed SCRAM message")]
    Malformed,
    #[error("its SCRAM nonce does not begin with ours")]
    Nonce,
    /// The server's verifier is not the one that the client was checked against.
    #[error("its verifier has a different salt or iteration count from the one known here")]
    OtherVerifier,
    /// The server does not know the password.
    #[error("it did not prove that it knows the password")]
    Signature,
}

/// The channel binding of a login, from the server's offer and its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) mechanism: &'static str,
    pub(crate) header: &'static str,
    /// Data after the header; both are sent in base64.
    pub(crate) end_point: Vec<u8>,
}

impl Choice {
    /// Chooses channel binding if both sides have it. If only this side has it, the header says so, and a server that
    /// has it too detects a changed offer.
    pub(crate) fn of(names: &[u8], leg: &Leg) -> Result<Self, ServerFault> {
        let offers = |name: &str| {
            names
                .split(|&byte| byte == 0)
                .any(|offered| offered == name.as_bytes())
        };
        let unbound = |header| Self {
            mechanism: SCRAM,
            header,
            end_point: Vec::new(),
        };
        match leg.end_point() {
            Some(end_point) if offers(SCRAM_PLUS) => Ok(Self {
                mechanism: SCRAM_PLUS,
                header: BOUND,
                end_point: end_point.to_vec(),
            }),
            Some(_) if offers(SCRAM) => Ok(unbound("y,,")),
            None if offers(SCRAM) => Ok(unbound("n,,")),
            _ => Err(ServerFault::Mechanism),
        }
    }
}

#[derive(Debug)]
pub struct Begun {
    keys: Keys,
    binding: String,
    bare: String,
    nonce: String,
}

#[derive(Debug)]
pub struct Answered {
    signature: ScramKey,
}

impl Begun {
    /// Begins an exchange, and returns the first message. `nonce` is random, of visible ASCII without a comma.
    pub(crate) fn new(keys: Keys, choice: &Choice, nonce: String) -> (Self, String) {
        let binding = [choice.header.as_bytes(), &choice.end_point].concat();
        // PostgreSQL takes the name from the startup packet.
        let bare = format!("n=,r={nonce}");
        let first = format!("{}{bare}", choice.header);
        let begun = Self {
            keys,
            binding: STANDARD.encode(binding),
            bare,
            nonce,
        };
        (begun, first)
    }

    pub(crate) fn answer(self, challenge: &[u8]) -> Result<(Answered, String), ServerFault> {
        let challenge = text(challenge)?;
        let (nonce, rest) = attribute(challenge, 'r').ok_or(ServerFault::Malformed)?;
        let (salt, rest) = attribute(rest, 's').ok_or(ServerFault::Malformed)?;
        let (iterations, _) = attribute(rest, 'i').ok_or(ServerFault::Malformed)?;
        match nonce.strip_prefix(self.nonce.as_str()) {
            Some(theirs) if is_nonce(theirs) => {}
            _ => return Err(ServerFault::Nonce),
        }
        let salt = STANDARD.decode(salt).map_err(|_| ServerFault::Malformed)?;
        let iterations: u32 = iterations.parse().map_err(|_| ServerFault::Malformed)?;
        if (salt, iterations) != (self.keys.salt, self.keys.iterations) {
            return Err(ServerFault::OtherVerifier);
        }
        let unproved = format!("c={},r={nonce}", self.binding);
        let said = format!("{},{challenge},{unproved}", self.bare);
        let stored_key = self.keys.client.hash();
        let proof = self.keys.client.xor(&stored_key.sign(&said));
        let answered = Answered {
            signature: self.keys.server.sign(&said),
        };
        Ok((answered, format!("{unproved},p={}", proof.base64())))
    }
}

impl Answered {
    pub(crate) fn verify(self, last: &[u8]) -> Result<(), ServerFault> {
        let (signature, _) = attribute(text(last)?, 'v').ok_or(ServerFault::Signature)?;
        match ScramKey::from_base64(signature) {
            Some(signature) if signature == self.signature => Ok(()),
            _ => Err(ServerFault::Signature),
        }
    }
}

fn text(message: &[u8]) -> Result<&str, ServerFault> {
    if message.len() > MESSAGE_MAX {
        return Err(ServerFault::Malformed);
    }
    std::str::from_utf8(message).map_err(|_| ServerFault::Malformed)
}
