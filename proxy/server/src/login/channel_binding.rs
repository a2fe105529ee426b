//! SCRAM through a proxy: a login bound to one leg's certificate is invalid on the other leg.
//!
//! Source: <https://www.postgresql.org/docs/current/sasl-authentication.html#SASL-SCRAM-SHA-256>

use bytes::{Bytes, BytesMut};
use pgpalisade_logins::kind;
use pgpalisade_logins::scram::{SCRAM, SCRAM_PLUS};
use pgpalisade_wire::encode::{self, Authentication};

use crate::certificates::Loaded;
use crate::transport::Socket;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// Binding works, or the server does not offer it.
    Relayed,
    /// The client has no TLS, so no server would offer it binding.
    Hidden,
    /// The legs have different certificates.
    Broken,
}

impl Binding {
    pub(super) fn between(client: &Socket, loaded: &Loaded, server: &Socket) -> Self {
        let shown = loaded.client.as_ref().map(|leg| leg.acceptor.certificate());
        match (client.is_encrypted(), server.peer_certificate()) {
            (_, None) => Self::Relayed,
            (false, Some(_)) => Self::Hidden,
            (true, Some(certificate)) if shown == Some(&*certificate) => Self::Relayed,
            (true, Some(_)) => Self::Broken,
        }
    }

    /// An authentication message for the client, without binding if that is hidden.
    pub(super) fn offered(self, message: Bytes, body: &[u8]) -> Bytes {
        match (self, body.split_first_chunk()) {
            (Self::Hidden, Some((asks, names))) if i32::from_be_bytes(*asks) == kind::SASL => {
                without_binding(names)
            }
            _ => message,
        }
    }

    /// Whether the client's first SCRAM answer would fail at the server with an error that does not mention the
    /// proxy.
    pub(super) fn fails(self, answer: &[u8]) -> bool {
        self != Self::Relayed && asks_for_binding(answer)
    }
}

/// The list without channel binding. It ends with an empty name.
fn without_binding(names: &[u8]) -> Bytes {
    let names = names.split(|byte| *byte == 0);
    let kept = names.filter(|name| !name.is_empty() && *name != SCRAM_PLUS.as_bytes());
    let names = kept.map(|name| String::from_utf8_lossy(name).into_owned());
    let mut out = BytesMut::new();
    encode::put(&mut out, &Authentication::SASL(names.collect()));
    out.freeze()
}

/// Whether a SASLInitialResponse asks for channel binding: `p`, or `y`, with which the client believes that the
/// server cannot bind. A server with TLS refuses `y` as a downgrade.
fn asks_for_binding(answer: &[u8]) -> bool {
    let Some(end) = answer.iter().position(|byte| *byte == 0) else {
        return false;
    };
    let (mechanism, rest) = answer.split_at(end);
    let first = rest.get(5).copied();
    mechanism == SCRAM_PLUS.as_bytes()
        || (mechanism == SCRAM.as_bytes() && matches!(first, Some(b'y' | b'p')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sasl(names: &[&str]) -> Bytes {
        let mut list = names.join("\0").into_bytes();
        list.extend([0, 0]);
        let mut message = vec![b'R'];
        message.extend((i32::try_from(list.len()).unwrap() + 8).to_be_bytes());
        message.extend(10_i32.to_be_bytes());
        message.extend(list);
        message.into()
    }

    fn offered(binding: Binding, message: &Bytes) -> Bytes {
        binding.offered(message.clone(), &message[5..])
    }

    #[test]
    fn a_client_without_tls_is_not_told_of_binding() {
        let both = sasl(&["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
        assert_eq!(offered(Binding::Hidden, &both), sasl(&["SCRAM-SHA-256"]));
        assert_eq!(offered(Binding::Relayed, &both), both);
        assert_eq!(offered(Binding::Broken, &both), both);
        let md5 = Bytes::from_static(b"R\0\0\0\x0c\0\0\0\x05salt");
        assert_eq!(offered(Binding::Hidden, &md5), md5);
        let cut = Bytes::from_static(b"R\0\0\0\x06\0\0");
        assert_eq!(offered(Binding::Hidden, &cut), cut);
    }

    #[track_caller]
    fn answer(text: &str, bound: bool) {
        let (mechanism, data) = text.split_once('|').unwrap();
        let mut body = mechanism.as_bytes().to_vec();
        body.push(0);
        body.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        body.extend(data.as_bytes());
        assert_eq!(Binding::Broken.fails(&body), bound, "{text}");
        assert_eq!(Binding::Hidden.fails(&body), bound, "{text}");
        assert!(!Binding::Relayed.fails(&body), "{text}");
    }

    #[test]
    fn who_binds_and_who_does_not() {
        answer("SCRAM-SHA-256-PLUS|p=tls-server-end-point,,n=,r=x", true);
        answer("SCRAM-SHA-256|y,,n=,r=x", true);
        answer("SCRAM-SHA-256|n,,n=,r=x", false);
        answer("SCRAM-SHA-256|", false);
        // A password may be anything.
        assert!(!Binding::Broken.fails(b"yyyyyyyyyyyy\0"));
        assert!(!Binding::Broken.fails(b""));
    }
}
