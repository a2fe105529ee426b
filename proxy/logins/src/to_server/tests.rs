//! Tests of the answers to each method.

use postgres_protocol::password::scram_sha_256;

use super::*;
use crate::scram::server::{Offered, mechanisms};
use crate::verifier::Account;

const PASSWORD: &[u8] = b"hunter2";

fn message(kind: i32, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes(), data].concat()
}

fn password() -> Credentials {
    Credentials::Password(Password::take(&mut b"hunter2\0".to_vec()).unwrap())
}

fn keys() -> Credentials {
    let verifier = scram_sha_256(PASSWORD).parse().unwrap();
    let mut library = ScramSha256::new(PASSWORD, ChannelBinding::unsupported());
    let first = library.message();
    let len = u32::try_from(first.len()).unwrap().to_be_bytes();
    let body = [b"SCRAM-SHA-256\0", &len[..], first].concat();
    let offered = Offered::new(Account::Known(verifier), Leg::Clear, "ours".to_owned());
    let (challenged, challenge) = offered.challenge(&body).unwrap();
    library.update(challenge.as_bytes()).unwrap();
    Credentials::Keys(challenged.prove(library.message()).unwrap().keys)
}

fn channel(leg: Leg, readers: Readers) -> Channel {
    Channel { leg, readers }
}

fn login(credentials: Credentials, channel: Channel) -> ServerLogin {
    ServerLogin::new(b"app".to_vec(), Arc::new(credentials), channel)
}

fn told(login: &mut ServerLogin, kind: i32, data: &[u8]) -> Result<Step, ServerLoginError> {
    login.on_authentication(&message(kind, data), "next".to_owned())
}

#[track_caller]
fn sent(step: Result<Step, ServerLoginError>) -> Vec<u8> {
    match step {
        Ok(Step::Send(body)) => body,
        other => unreachable!("{other:?}"),
    }
}

fn clear() -> Channel {
    channel(Leg::Clear, Readers::Anybody)
}

fn encrypted() -> Channel {
    channel(Leg::Encrypted(Some(vec![1; 32])), Readers::Ends)
}

#[test]
fn a_password_for_each_method() {
    let mut by_md5 = login(password(), clear());
    let hash = md5_hash(b"app", PASSWORD, *b"salt");
    let found = sent(told(&mut by_md5, kind::MD5_PASSWORD, b"salt"));
    assert_eq!(found, [hash.as_bytes(), b"\0"].concat());
    assert!(matches!(told(&mut by_md5, kind::OK, b""), Ok(Step::Done)));

    let mut readable = login(password(), encrypted());
    let seen = sent(told(&mut readable, kind::CLEARTEXT_PASSWORD, b""));
    assert_eq!(seen, b"hunter2\0");
    let error = told(
        &mut login(password(), clear()),
        kind::CLEARTEXT_PASSWORD,
        b"",
    );
    assert_eq!(error.unwrap_err(), ServerLoginError::Readable);
    let trusted = told(&mut login(password(), clear()), kind::OK, b"");
    assert!(matches!(trusted, Ok(Step::Done)));
    let gss = told(&mut login(password(), clear()), 7, b"");
    assert_eq!(gss.unwrap_err(), ServerLoginError::Method(7));
}

#[test]
fn keys_are_for_scram_only() {
    for (kind, data) in [
        (kind::CLEARTEXT_PASSWORD, &b""[..]),
        (kind::MD5_PASSWORD, b"salt"),
    ] {
        let error = told(&mut login(keys(), encrypted()), kind, data).unwrap_err();
        assert!(
            matches!(error, ServerLoginError::NeedsPassword(_)),
            "{error}"
        );
    }
}

/// With a password and with keys, each with and without channel binding.
#[test]
fn scram_at_a_server() {
    let verifier = || scram_sha_256(PASSWORD).parse::<crate::Verifier>().unwrap();
    for channel in [clear(), encrypted()] {
        // The keys belong to one salt, so the server must have the same.
        let of_keys = keys();
        let Credentials::Keys(learned) = &of_keys else {
            unreachable!();
        };
        let same = crate::Verifier {
            salt: learned.salt.clone(),
            iterations: learned.iterations,
            server_key: learned.server.clone(),
            stored_key: learned.client.hash(),
        };
        for (credentials, verifier) in [(password(), verifier()), (of_keys.clone(), same)] {
            let mut login = login(credentials, channel.clone());
            let names = [mechanisms(&channel.leg).join("\0"), "\0\0".to_owned()].concat();
            let initial = sent(told(&mut login, kind::SASL, names.as_bytes()));
            let account = Account::Known(verifier);
            let server = Offered::new(account, channel.leg.clone(), "theirs".to_owned());
            let (challenged, challenge) = server.challenge(&initial).unwrap();
            let proof = sent(told(&mut login, kind::SASL_CONTINUE, challenge.as_bytes()));
            let proven = challenged.prove(&proof).unwrap();
            let last = told(&mut login, kind::SASL_FINAL, proven.last.as_bytes());
            assert!(matches!(last, Ok(Step::Wait)));
            assert!(matches!(told(&mut login, kind::OK, b""), Ok(Step::Done)));
        }
    }
}

/// A server must prove that it knows the password before it says yes.
#[test]
fn out_of_turn() {
    for credentials in [password(), keys()] {
        let mut login = login(credentials.clone(), clear());
        sent(told(&mut login, kind::SASL, b"SCRAM-SHA-256\0\0"));
        let early = told(&mut login, kind::OK, b"").unwrap_err();
        assert_eq!(early, ServerLoginError::Unexpected(kind::OK));
        assert!(told(&mut login, kind::SASL, b"SCRAM-SHA-256\0\0").is_err());
    }
    let mut login = login(password(), encrypted());
    sent(told(&mut login, kind::CLEARTEXT_PASSWORD, b""));
    assert!(
        told(&mut login, kind::CLEARTEXT_PASSWORD, b"").is_err(),
        "it is sent once"
    );
    for body in [&b""[..], b"\0\0\0"] {
        let error = login.on_authentication(body, String::new()).unwrap_err();
        assert_eq!(error, ServerLoginError::Unexpected(-1));
    }
}

#[test]
fn nothing_is_shown() {
    for credentials in [password(), keys()] {
        let text = format!("{credentials:?} {:?}", login(credentials.clone(), clear()));
        assert!(
            !text.contains("hunter2") && text.contains("[secret]"),
            "{text}"
        );
    }
}
