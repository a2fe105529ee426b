//! Exchanges of the RFC and of libpq, both sides together, and malformed messages.

use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use postgres_protocol::password::scram_sha_256;

use super::client::{Begun, Choice, ServerFault};
use super::server::{Challenged, LoginRefusal, Offered, mechanisms};
use super::*;
use crate::verifier::{Account, Mocks, Shapes, Verifier};

/// <https://www.rfc-editor.org/rfc/rfc7677#section-3>: password `pencil`.
const RFC: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
    wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
const RFC_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const RFC_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const RFC_CHALLENGE: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const RFC_PROOF: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const RFC_LAST: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn known(verifier: &str) -> Account {
    Account::Known(verifier.parse().unwrap())
}

fn initial(mechanism: &str, message: &str) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [mechanism.as_bytes(), b"\0", &len, message.as_bytes()].concat()
}

fn offered(account: Account, leg: Leg) -> Offered {
    Offered::new(account, leg, RFC_NONCE.to_owned())
}

fn rfc() -> Challenged {
    let offered = offered(known(RFC), Leg::Clear);
    offered.challenge(&initial(SCRAM, RFC_FIRST)).unwrap().0
}

#[test]
fn the_example_of_the_rfc() {
    let offered = offered(known(RFC), Leg::Clear);
    let (challenged, challenge) = offered.challenge(&initial(SCRAM, RFC_FIRST)).unwrap();
    assert_eq!(challenge, RFC_CHALLENGE);
    let proven = challenged.prove(RFC_PROOF.as_bytes()).unwrap();
    assert_eq!(proven.last, RFC_LAST);
    // The learned key is the one that hashes to the StoredKey.
    let verifier: Verifier = RFC.parse().unwrap();
    assert_eq!(proven.keys.client.hash(), verifier.stored_key);
    assert_eq!(format!("{:?}", proven.keys), "[secret]");
    assert!(!format!("{proven:?}").contains("client"));
}

/// The library's client, this server, and this client at the next server, with every kind of binding.
#[track_caller]
fn through(password: &[u8], client: (&str, ChannelBinding), leg: &Leg, onward: &Leg) {
    let verifier = scram_sha_256(password);
    let (mechanism, binding) = client;
    let mut library = ScramSha256::new(password, binding);
    let first = String::from_utf8(library.message().to_vec()).unwrap();
    let offered_here = Offered::new(known(&verifier), leg.clone(), "ours".to_owned());
    let (challenged, challenge) = offered_here.challenge(&initial(mechanism, &first)).unwrap();
    library.update(challenge.as_bytes()).unwrap();
    let proven = challenged.prove(library.message()).unwrap();
    library.finish(proven.last.as_bytes()).unwrap();

    let names = [mechanisms(onward).join("\0"), "\0\0".to_owned()].concat();
    let choice = Choice::of(names.as_bytes(), onward).unwrap();
    let (begun, first) = Begun::new(proven.keys, &choice, "next".to_owned());
    let server = Offered::new(known(&verifier), onward.clone(), "theirs".to_owned());
    let (challenged, challenge) = server
        .challenge(&initial(choice.mechanism, &first))
        .unwrap();
    let (answered, proof) = begun.answer(challenge.as_bytes()).unwrap();
    let proven = challenged.prove(proof.as_bytes()).unwrap();
    answered.verify(proven.last.as_bytes()).unwrap();
}

#[test]
fn one_proof_is_good_for_two_servers() {
    let tls = |byte| Leg::Encrypted(Some(vec![byte; 32]));
    let bound = || ChannelBinding::tls_server_end_point(vec![1; 32]);
    for onward in [Leg::Clear, Leg::Encrypted(None), tls(2)] {
        for password in [
            "pencil".as_bytes(),
            "corréct 'horse'".as_bytes(),
            b"\xff\xfe",
        ] {
            let unsupported = || (SCRAM, ChannelBinding::unsupported());
            through(password, unsupported(), &Leg::Clear, &onward);
            through(password, unsupported(), &tls(1), &onward);
            through(password, (SCRAM_PLUS, bound()), &tls(1), &onward);
            // Binding is not possible, and the client says so.
            let unrequested = (SCRAM, ChannelBinding::unrequested());
            through(password, unrequested, &Leg::Encrypted(None), &onward);
        }
    }
}

#[test]
fn what_is_offered() {
    assert_eq!(mechanisms(&Leg::Clear), [SCRAM]);
    assert_eq!(mechanisms(&Leg::Encrypted(None)), [SCRAM]);
    let found = mechanisms(&Leg::Encrypted(Some(vec![0])));
    assert_eq!(found, [SCRAM_PLUS, SCRAM]);
}

#[track_caller]
fn first(leg: &Leg, mechanism: &str, message: &str, expect: &LoginRefusal) {
    let mock = Mocks::new([7; KEY_LEN], Shapes::default()).of(b"nobody");
    for account in [known(RFC), mock] {
        let refused = offered(account, leg.clone()).challenge(&initial(mechanism, message));
        assert_eq!(&refused.unwrap_err(), expect, "{mechanism:?} {message}");
    }
}

#[track_caller]
fn malformed(leg: &Leg, body: &[u8]) {
    let refused = offered(known(RFC), leg.clone()).challenge(body);
    let is_it = matches!(refused, Err(LoginRefusal::Malformed(_)));
    assert!(is_it, "{}: {refused:?}", body.escape_ascii());
}

#[test]
fn first_messages_that_are_wrong() {
    use LoginRefusal::{AuthorizationIdentity, BindingType, Downgrade, Extension, Mechanism};
    let tls = Leg::Encrypted(Some(vec![1; 32]));
    let bound = "p=tls-server-end-point,,n=,r=x";
    for name in ["", "SCRAM-SHA-1", "scram-sha-256", SCRAM_PLUS, "\u{e9}"] {
        first(&Leg::Clear, name, RFC_FIRST, &Mechanism);
    }
    first(&Leg::Encrypted(None), SCRAM_PLUS, bound, &Mechanism);
    first(&tls, SCRAM, "y,,n=,r=x", &Downgrade);
    first(&tls, SCRAM_PLUS, "y,,n=,r=x", &Downgrade);
    first(&tls, SCRAM_PLUS, "p=tls-unique,,n=,r=x", &BindingType);
    let authorized = "n,a=admin,n=,r=x";
    first(&Leg::Clear, SCRAM, authorized, &AuthorizationIdentity);
    first(&Leg::Clear, SCRAM, "n,,m=1,n=,r=x", &Extension);
    malformed(&tls, &initial(SCRAM_PLUS, "n,,n=,r=x"));
    malformed(&tls, &initial(SCRAM, bound));
    malformed(&Leg::Clear, &initial(SCRAM, bound));
    let short =
        "|n|n,|n,,|n,,n=|n,,n=x|n,,n=,r=|n,,r=x|x,,n=,r=x|n,,n=,r=\u{e9}|n,,n=,r=a b|n,,n=,r=a\0b";
    let long = format!("n,,n=,r={}", "x".repeat(MESSAGE_MAX));
    for message in short.split('|').chain([&*long]) {
        malformed(&Leg::Clear, &initial(SCRAM, message));
    }
    let whole = initial(SCRAM, RFC_FIRST);
    for end in 0..whole.len() {
        malformed(&Leg::Clear, &whole[..end]);
    }
    malformed(&Leg::Clear, &[&whole[..], b"x"].concat());
    malformed(&Leg::Clear, b"SCRAM-SHA-256\0\xff\xff\xff\xff");
    malformed(&Leg::Clear, b"SCRAM-SHA-256\0\xff\xff\xff\xffn,,n=,r=x");
}

#[test]
fn last_messages_that_are_wrong() {
    let refused = |message: &str| rfc().prove(message.as_bytes()).unwrap_err();
    // A proof with a changed or missing byte is wrong.
    for end in 0..RFC_PROOF.len() {
        let refusal = refused(&RFC_PROOF[..end]);
        assert!(
            !matches!(refusal, LoginRefusal::Proof),
            "{end}: {refusal:?}"
        );
    }
    let long = format!("p={}", "x".repeat(MESSAGE_MAX));
    for (from, to, expect) in [
        ("p=dH", "p=eH", LoginRefusal::Proof),
        ("Ilj)", "Ilj(", LoginRefusal::Nonce),
        (RFC_NONCE, "", LoginRefusal::Nonce),
        ("biws", "eSws", LoginRefusal::UnexpectedBinding),
        // An extension is signed.
        (",p=", ",x=1,p=", LoginRefusal::Proof),
        (
            "p=",
            &long,
            LoginRefusal::Malformed("The message is too long."),
        ),
    ] {
        assert_eq!(refused(&RFC_PROOF.replace(from, to)), expect, "{from}");
    }
    for message in ["", "p=", "c=biws", "r=x,c=biws,p=x", "\0"] {
        assert!(
            matches!(refused(message), LoginRefusal::Malformed(_)),
            "{message}"
        );
    }
    assert!(matches!(
        rfc().prove(b"\xff\xfe").unwrap_err(),
        LoginRefusal::Malformed(_)
    ));
}

/// No proof opens a mock account, not even one with the mock's own keys.
#[test]
fn who_does_not_exist() {
    let account = Mocks::new([7; KEY_LEN], Shapes::default()).of(b"nobody");
    let Account::Unknown(mock) = account.clone() else {
        unreachable!();
    };
    // Not even if its StoredKey is known to be the hash of a known key.
    let client = ScramKey([3; KEY_LEN]);
    let stolen = Verifier {
        stored_key: client.hash(),
        ..mock
    };
    let keys = Keys {
        salt: stolen.salt.clone(),
        iterations: stolen.iterations,
        client,
        server: stolen.server_key.clone(),
    };
    for (account, expect) in [
        (Account::Known(stolen.clone()), None),
        (Account::Unknown(stolen), Some(LoginRefusal::Proof)),
    ] {
        let choice = Choice::of(b"SCRAM-SHA-256\0\0", &Leg::Clear).unwrap();
        let (begun, first) = Begun::new(keys.clone(), &choice, "next".to_owned());
        let (challenged, challenge) = offered(account, Leg::Clear)
            .challenge(&initial(SCRAM, &first))
            .unwrap();
        let (_, proof) = begun.answer(challenge.as_bytes()).unwrap();
        assert_eq!(challenged.prove(proof.as_bytes()).err(), expect);
    }
}

/// An exchange of psql recorded by postgres-protocol, password `foobar`, played by our client.
#[test]
fn a_recorded_server() {
    let nonce = "9IZ2O01zb9IgiIZ1WJ/zgpJB";
    let server_nonce = "9IZ2O01zb9IgiIZ1WJ/zgpJBjx/oIRLs02gGSHcw1KEty3eY";
    let challenge = format!("r={server_nonce},s=fs3IXBy7U7+IvVjZ,i=4096");
    let begin = || {
        let choice = Choice::of(b"SCRAM-SHA-256\0\0", &Leg::Clear).unwrap();
        Begun::new(foobar(), &choice, nonce.to_owned())
    };
    let (begun, first) = begin();
    assert_eq!(first, format!("n,,n=,r={nonce}"));
    let (answered, proof) = begun.answer(challenge.as_bytes()).unwrap();
    assert_eq!(
        proof,
        format!("c=biws,r={server_nonce},p=AmNKosjJzS31NTlQYNs5BTeQjdHdk7lOflDo5re2an8=")
    );
    answered
        .verify(b"v=U+ppxD5XUKtradnv8e2MkeupiA8FU87Sg8CXzXHDAzw=")
        .unwrap();

    for (from, to, fault) in [
        (server_nonce, nonce, ServerFault::Nonce),
        ("r=9", "r=8", ServerFault::Nonce),
        ("fs3I", "gs3I", ServerFault::OtherVerifier),
        ("4096", "4095", ServerFault::OtherVerifier),
        ("i=4096", "i=", ServerFault::Malformed),
        ("s=", "x=", ServerFault::Malformed),
        ("fs3I", "fs3!", ServerFault::Malformed),
    ] {
        let answer = begin().0.answer(challenge.replacen(from, to, 1).as_bytes());
        assert_eq!(answer.unwrap_err(), fault, "{from} {to}");
    }
    for last in [
        "",
        "v=",
        "v=V+ppxD5XUKtradnv8e2MkeupiA8FU87Sg8CXzXHDAzw=",
        "e=other-error",
        "U+ppxD5",
    ] {
        let (answered, _) = begin().0.answer(challenge.as_bytes()).unwrap();
        assert_eq!(
            answered.verify(last.as_bytes()),
            Err(ServerFault::Signature),
            "{last}"
        );
    }
}

fn foobar() -> Keys {
    let salt = STANDARD.decode("fs3IXBy7U7+IvVjZ").unwrap();
    let mut password = [0; KEY_LEN];
    password[..6].copy_from_slice(b"foobar");
    let mut turn = hmac(&password, &[&salt, &[0, 0, 0, 1]]);
    let mut salted = turn;
    for _ in 1..4096 {
        turn = hmac(&password, &[&turn]);
        for (byte, turn) in salted.iter_mut().zip(turn) {
            *byte ^= turn;
        }
    }
    Keys {
        salt,
        iterations: 4096,
        client: ScramKey(hmac(&salted, &[b"Client Key"])),
        server: ScramKey(hmac(&salted, &[b"Server Key"])),
    }
}

#[test]
fn which_mechanism_is_chosen() {
    let both = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    let plain = b"SCRAM-SHA-256\0\0";
    let tls = Leg::Encrypted(Some(vec![1]));
    let chosen = |names: &[u8], leg: &Leg| {
        Choice::of(names, leg).map(|choice| (choice.mechanism, choice.header))
    };
    assert_eq!(chosen(both, &tls), Ok((SCRAM_PLUS, BOUND)));
    assert_eq!(chosen(plain, &tls), Ok((SCRAM, "y,,")));
    assert_eq!(chosen(both, &Leg::Encrypted(None)), Ok((SCRAM, "n,,")));
    assert_eq!(chosen(both, &Leg::Clear), Ok((SCRAM, "n,,")));
    for names in [
        &b""[..],
        b"\0",
        b"SCRAM-SHA-1\0\0",
        b"SCRAM-SHA-256-PLUS\0\0",
    ] {
        assert_eq!(chosen(names, &Leg::Clear), Err(ServerFault::Mechanism));
    }
}
