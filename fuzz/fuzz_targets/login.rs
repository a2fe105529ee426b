//! Logins that end at the proxy: input of a client, a server, an operator and a certificate.
//!
//! No client gets in without the key, and a server without proof is not believed.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use pgpalisade_logins::scram::server::{LoginRefusal, Offered};
use pgpalisade_logins::scram::{Leg, nonce};
use pgpalisade_logins::{
    Account, Channel, Credentials, Mocks, Password, Readers, ServerLogin, Shapes, Step, UsersFile,
    Verifier, end_point,
};

/// Password `pencil`: <https://www.rfc-editor.org/rfc/rfc7677#section-3>.
const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                        wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

#[cfg(not(feature = "libfuzzer"))]
const fn main() {}

fuzz_target!(|data: &[u8]| {
    let _ = end_point::hash(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<Verifier>();
        let _ = UsersFile::parse(text);
    }
    // Two messages, of lengths that the fuzzer chooses.
    let (first, rest) = data.split_at(
        data.len()
            .min(data.first().map_or(0, |&len| usize::from(len))),
    );
    let tls = Leg::Encrypted(Some(vec![1; 32]));
    for leg in [Leg::Clear, tls] {
        client(leg.clone(), first, rest);
        server(leg, first, rest);
    }
});

fn client(leg: Leg, first: &[u8], second: &[u8]) {
    let Ok(verifier) = VERIFIER.parse() else {
        panic!("the verifier of the RFC");
    };
    let exchange = |account| {
        let offered = Offered::new(account, leg.clone(), nonce(&[7; 18]));
        let (challenged, _) = offered.challenge(first)?;
        challenged.prove(second).map(drop)
    };
    let known = exchange(Account::Known(verifier));
    let unknown = exchange(Mocks::new([7; 32], Shapes::default()).of(b"nobody"));
    assert!(known.is_err(), "a proof was guessed");
    assert_eq!(known, unknown, "who exists is shown");
    assert!(!matches!(known, Err(LoginRefusal::Proof)) || second.len() > 40);
}

fn server(leg: Leg, first: &[u8], second: &[u8]) {
    let Ok(password) = Password::take(&mut b"pencil\0".to_vec()) else {
        panic!("a password");
    };
    let channel = Channel {
        leg,
        readers: Readers::Anybody,
    };
    let mut login = ServerLogin::new(
        b"app".to_vec(),
        Arc::new(Credentials::Password(password)),
        channel,
    );
    let asks_nothing = [0, 0, 0, 0];
    for (number, body) in [first, second].into_iter().enumerate() {
        match login.on_authentication(body, nonce(&[7; 18])) {
            Ok(Step::Send(answer)) => {
                assert!(
                    !answer.windows(6).any(|part| part == b"pencil"),
                    "it is readable"
                );
            }
            Ok(Step::Done) => assert!(body.starts_with(&asks_nothing), "message {number}"),
            Ok(Step::Wait) => panic!("a server has proved that it knows the password"),
            Err(_) => return,
        }
    }
}
