//! Clients that violate SCRAM: no login, PostgreSQL's messages, and no sign of which users exist.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::assert_within;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Batch, Message, PROTOCOL_3_0, Wire, pretty, tags};
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use super::{PASSWORD, Stage, Way};

/// A client that has sent its startup packet, and the mechanisms offered to it.
pub(super) struct Client {
    pub(super) wire: Wire,
    offered: String,
}

fn initial(mechanism: &str, message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [mechanism.as_bytes(), b"\0", &len, message].concat()
}

impl Client {
    pub(super) fn begin(mut wire: Wire, user: &str) -> Self {
        wire.startup(PROTOCOL_3_0, &[("user", user), ("database", "postgres")]);
        let request = wire.read();
        assert_eq!(request.body[..4], [0, 0, 0, 10], "{request:?}");
        let offered = String::from_utf8(request.body[4..].to_vec()).unwrap();
        Self { wire, offered }
    }

    pub(super) fn clear(way: &Way, user: &str) -> Self {
        Self::begin(Wire::connect(&way.proxy.endpoint()), user)
    }

    fn encrypted(way: &Way, user: &str) -> Self {
        let client = way.stage.authority.client();
        let wire = Wire::connect_tls(&way.proxy.endpoint(), &client).unwrap();
        Self::begin(wire, user)
    }

    fn say(&mut self, body: &[u8]) {
        self.wire.send(&Batch::new().message(b'p', body));
    }

    /// Chooses this mechanism, and reads the challenge.
    pub(super) fn challenge(&mut self, mechanism: &str, first: &[u8]) -> Vec<u8> {
        self.say(&initial(mechanism, first));
        let challenge = self.wire.read();
        assert_eq!(challenge.body[..4], [0, 0, 0, 11], "{challenge:?}");
        challenge.body[4..].to_vec()
    }

    /// The error of a refused client, as the only message.
    #[track_caller]
    fn refused(&mut self) -> Message {
        let end = self.wire.until_closed();
        assert_eq!(end.len(), 2, "{}", pretty(&end));
        assert_eq!((end[0].tag, end[0].severity().as_str()), (b'E', "FATAL"));
        end[0].clone()
    }
}

#[track_caller]
fn message(error: &Message, sqlstate: &str, text: &str) {
    let found = (error.sqlstate(), error.field(b'M').unwrap());
    assert_eq!(found, (sqlstate.to_owned(), text.to_owned()));
}

const MALFORMED: &str = "malformed SCRAM message";

/// PostgreSQL authenticates the proxy by the user of its process, or asks nobody. `trust` stands for both here.
#[test]
fn a_client_is_not_let_in_as_the_proxy() {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE app LOGIN");
    let mut options = Options::new(&postgres).with_own_role(&postgres);
    let directory = postgres.socket_dir().display();
    options.upstream = format!("postgres:///?host={directory}&port={}", postgres.port());
    let proxy = Proxy::start_with(options);
    let login = |user: &str| {
        let mut wire = Wire::connect(&proxy.endpoint());
        wire.startup(PROTOCOL_3_0, &[("user", user), ("database", "postgres")]);
        wire.read()
    };
    assert_eq!(login("keeper").sqlstate(), "28000");
    assert_eq!(login("app").body, [0, 0, 0, 0]);
}

#[test]
fn malformed_messages() {
    let way = Stage::new(Auth::Scram).scram("require");
    let sha_256 = |message: &[u8]| initial("SCRAM-SHA-256", message);
    let bound = initial("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=x");
    let invalid = "client selected an invalid SASL authentication mechanism";
    let length = b"SCRAM-SHA-256\0\0\0\0\xffn,,n=,r=x".to_vec();
    let cases: [(Vec<u8>, &str); 9] = [
        (Vec::new(), MALFORMED),
        (b"SCRAM-SHA-256".to_vec(), MALFORMED),
        (length, MALFORMED),
        (sha_256(b""), MALFORMED),
        (sha_256(b"n,,n=,r=\xff"), MALFORMED),
        (sha_256(b"n,,n=,r="), MALFORMED),
        (bound, invalid),
        (initial("SCRAM-SHA-1", b"n,,n=,r=x"), invalid),
        (sha_256(&[b"n,,n=,r=", &[b'x'; 900][..]].concat()), ""),
    ];
    for (body, text) in &cases {
        let said = ["app", "nobody"].map(|user| {
            let mut client = Client::clear(&way, user);
            client.say(body);
            if text.is_empty() {
                // The maximum length of a message.
                assert_eq!(client.wire.read().body[..4], [0, 0, 0, 11]);
                client.say(b"c=biws,r=x,p=x");
            }
            client.refused()
        });
        assert_eq!(said[0], said[1], "who exists is shown");
        assert_eq!(said[0].sqlstate(), "08P01", "{}", body.escape_ascii());
        if !text.is_empty() {
            message(&said[0], "08P01", text);
        }
    }
}

/// The header alone refuses an oversized message, without waiting for the rest.
#[test]
fn huge_messages_and_others() {
    let way = Stage::new(Auth::Scram).scram("require");
    let length = |length| format!("invalid message length {length} for message type 'p'");
    let expected = "expected SASL response, got message type";
    let startup = "invalid message length 0 for message type startup";
    for (bytes, text) in [
        (&b"p\0\0\x04\x05"[..], length("1029")),
        (b"p\x7f\xff\xff\xff", length("2147483647")),
        (b"p\xff\xff\xff\xff", length("-1")),
        (b"Q\0\0\0\x0dSELECT 1\0", format!("{expected} 81")),
        (b"X\0\0\0\x04", format!("{expected} 88")),
        (b"\0\0\0\0\0", startup.to_owned()),
    ] {
        let mut client = Client::clear(&way, "app");
        client.wire.send_bytes(bytes);
        message(&client.refused(), "08P01", &text);
    }
}

#[test]
fn a_client_that_leaves() {
    let way = Stage::new(Auth::Scram).scram("require");
    for part in [&b""[..], b"p\0\0", b"p\0\0\0\x20SCRAM"] {
        let mut client = Client::clear(&way, "app");
        client.wire.send_bytes(part);
        client.wire.shut_down_writing();
        let end = client.wire.until_closed();
        assert_eq!(end.len(), 1, "{}", pretty(&end));
    }
    way.works("verify-full", "prefer", "t");
}

/// A login by hand, each message of it.
pub(super) fn by_hand(client: &mut Client, password: &str) -> (Vec<u8>, Vec<u8>, Vec<Message>) {
    let mut scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
    let first = scram.message().to_vec();
    let challenge = client.challenge("SCRAM-SHA-256", &first);
    scram.update(&challenge).unwrap();
    let proof = scram.message().to_vec();
    client.say(&proof);
    let rest = client.wire.until_ready();
    if let Some(last) = rest.iter().find(|message| message.tag == b'R') {
        scram.finish(&last.body[4..]).unwrap();
    }
    (first, proof, rest)
}

/// The client sees the messages of one login, as with PostgreSQL itself.
#[test]
fn one_login_is_seen() {
    let way = Stage::new(Auth::Scram).scram("require");
    let (_, _, proxied) = by_hand(&mut Client::clear(&way, "app"), PASSWORD);
    let mut direct = Client::begin(Wire::connect(&way.stage.postgres.tcp()), "app");
    let (_, _, direct) = by_hand(&mut direct, PASSWORD);
    assert_eq!(tags(&proxied), tags(&direct));
    let kinds = |messages: &[Message]| {
        let requests = messages.iter().filter(|message| message.tag == b'R');
        requests.map(|message| message.body[3]).collect::<Vec<u8>>()
    };
    assert_eq!(
        (kinds(&proxied), kinds(&direct)),
        (vec![12, 0], vec![12, 0])
    );
}

/// An overheard login is useless: the challenge differs each time.
#[test]
fn a_replay() {
    let way = Stage::new(Auth::Scram).scram("require");
    let (first, proof, rest) = by_hand(&mut Client::clear(&way, "app"), PASSWORD);
    assert!(rest.iter().any(|message| message.tag == b'Z'));
    let mut again = Client::clear(&way, "app");
    let challenge = again.challenge("SCRAM-SHA-256", &first);
    again.say(&proof);
    message(&again.refused(), "08P01", "invalid SCRAM response");
    // With the nonce of the new challenge the proof is wrong.
    let mut again = Client::clear(&way, "app");
    let new = again.challenge("SCRAM-SHA-256", &first);
    assert_ne!(new, challenge);
    let new = String::from_utf8(new).unwrap();
    let nonce = new.split(',').next().unwrap();
    let proof = String::from_utf8(proof).unwrap();
    let (_, proof) = proof.split_once(",p=").unwrap();
    again.say(format!("c=biws,{nonce},p={proof}").as_bytes());
    let failed = "password authentication failed for user \"app\"";
    message(&again.refused(), "28P01", failed);
}

#[test]
fn channel_binding_to_something_else() {
    let way = Stage::new(Auth::Scram).scram("require");
    let mut client = Client::encrypted(&way, "app");
    assert_eq!(client.offered, "SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
    let bound = ChannelBinding::tls_server_end_point(vec![7; 32]);
    let mut scram = ScramSha256::new(PASSWORD.as_bytes(), bound);
    let challenge = client.challenge("SCRAM-SHA-256-PLUS", scram.message());
    scram.update(&challenge).unwrap();
    client.say(scram.message());
    let refused = client.refused();
    message(&refused, "28000", "SCRAM channel binding check failed");

    // An attacker in the middle has removed it from the list.
    let mut client = Client::encrypted(&way, "app");
    client.say(&initial("SCRAM-SHA-256", b"y,,n=,r=x"));
    let refused = client.refused();
    message(&refused, "28000", "SCRAM channel binding negotiation error");

    let mut client = Client::encrypted(&way, "app");
    client.say(&initial("SCRAM-SHA-256", b"p=tls-server-end-point,,n=,r=x"));
    message(&client.refused(), "08P01", "malformed SCRAM message");

    let client = Client::clear(&way, "app");
    assert_eq!(client.offered, "SCRAM-SHA-256\0\0");
}

/// Unauthenticated clients do not keep a place for long, as if PostgreSQL asked.
#[test]
fn a_client_that_says_nothing() {
    let way = Stage::new(Auth::Scram).scram("require");
    let mut client = Client::clear(&way, "app");
    client.wire.set_patience(Duration::from_secs(30));
    let since = Instant::now();
    let refused = client.refused();
    message(&refused, "57014", "canceling authentication due to timeout");
    assert_within(since, Duration::from_secs(20));
}

/// The password is requested once, and must come as a password message.
#[test]
fn passwords_that_are_none() {
    let way = Stage::new(Auth::Scram).way("require", &[("--auth", "password")]);
    let empty = "empty password returned by client";
    let size = "invalid password packet size";
    let expected = "expected password response, got message type 81";
    let length = "invalid message length 65541 for message type 'p'";
    for (bytes, sqlstate, text) in [
        (&b"p\0\0\0\x05\0"[..], "28P01", empty),
        (b"p\0\0\0\x04", "08P01", size),
        (b"p\0\0\0\x07abc", "08P01", size),
        (b"p\0\0\0\x07a\0\0", "08P01", size),
        (b"Q\0\0\0\x05\0", "08P01", expected),
        (b"p\0\x01\0\x05", "08P01", length),
    ] {
        let client = way.stage.authority.client();
        let mut wire = Wire::connect_tls(&way.proxy.endpoint(), &client).unwrap();
        wire.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
        assert_eq!(wire.read().body, [0, 0, 0, 3]);
        wire.send_bytes(bytes);
        let end = wire.until_closed();
        message(&end[0], sqlstate, text);
    }
    // Unencrypted connections are refused before a password is sent.
    let mut wire = Wire::connect(&way.proxy.endpoint());
    wire.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
    let end = wire.until_closed();
    assert_eq!(end.len(), 2, "{}", pretty(&end));
    message(
        &end[0],
        "28000",
        "28000: pgpalisade asks for the password over TLS only",
    );
}

/// After AuthenticationOk the proxy forwards no reply of the client to the server, so no password gets there.
#[test]
fn a_server_that_asks_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 4096];
        assert!(stream.read(&mut bytes).unwrap() > 8);
        let requests = b"R\0\0\0\x08\0\0\0\0R\0\0\0\x08\0\0\0\x03";
        stream.write_all(requests).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let read = stream.read(&mut bytes).unwrap_or_default();
        bytes.truncate(read);
        bytes
    });
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres);
    options.upstream = format!("postgres://127.0.0.1:{port}");
    let proxy = Proxy::start_with(options);
    let mut wire = Wire::connect(&proxy.endpoint());
    wire.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
    assert_eq!((wire.read().body[3], wire.read().body[3]), (0, 3));
    wire.send(&Batch::new().password("hunter2"));
    let got = server.join().unwrap();
    assert_eq!(got, b"", "{}", got.escape_ascii());
}
