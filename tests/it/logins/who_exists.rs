//! Challenges: neither their contents nor their changes show which users exist.

use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::wire::{Wire, pretty};

use super::hostile::{Client, by_hand};
use super::sources::{OF_PG_AUTHID, by_query};
use super::{Stage, Way};

/// Salt and iteration count of a user's challenge, and the length of the nonce.
fn challenge(way: &Way, user: &str) -> (usize, String) {
    challenge_of(&mut Client::clear(way, user))
}

fn challenge_of(client: &mut Client) -> (usize, String) {
    let text = client.challenge("SCRAM-SHA-256", b"n,,n=,r=x");
    let text = String::from_utf8(text).unwrap();
    let (nonce, rest) = text.split_once(",s=").unwrap();
    (nonce.len(), rest.to_owned())
}

/// Parts independent of the user: the length of the salt, and the iteration count.
fn shape(challenge: &str) -> (usize, String) {
    let (salt, iterations) = challenge.split_once(",i=").unwrap();
    (salt.len(), iterations.to_owned())
}

/// A user unknown to the query gets a challenge like PostgreSQL's, which stays the same whomever else the query
/// finds.
#[test]
fn who_exists_is_not_shown_by_a_query() {
    let way = by_query(Stage::new(Auth::Scram), "postgres", OF_PG_AUTHID);
    let nobodies: Vec<String> = (0..8).map(|number| format!("nobody{number}")).collect();
    let shown = || nobodies.iter().map(|user| challenge(&way, user).1);
    let first: Vec<String> = shown().collect();
    let postgres = Wire::connect(&way.stage.postgres.tcp());
    let direct = challenge_of(&mut Client::begin(postgres, "nobody0")).1;
    for challenge in &first {
        assert_eq!(shape(challenge), shape(&direct));
    }
    let app = challenge(&way, "app");
    assert_eq!(shape(&app.1), shape(&direct));
    assert!(shown().eq(first.iter().cloned()));
    for (role, verifier) in [
        ("many", "10000:W22ZaJ0SNY7soEsUEjb6gQ=="),
        ("short", "4096:W22Z"),
    ] {
        let alter = format!(
            "DO $$ BEGIN EXECUTE (SELECT format('CREATE ROLE {role} LOGIN PASSWORD %L',
                 regexp_replace(rolpassword, '4096:[^$]*', '{verifier}'))
             FROM pg_authid WHERE rolname = 'app'); END $$"
        );
        way.stage.postgres.sql(&alter);
        let (_, known) = challenge(&way, role);
        assert_ne!(shape(&known), shape(&direct), "{known}");
        assert!(shown().eq(first.iter().cloned()), "after {role}");
    }
}

/// Reading the users file again does not change it either.
#[test]
fn who_exists_is_not_shown_by_a_file_that_changes() {
    let way = Stage::new(Auth::Scram).scram("require");
    let nobodies: Vec<String> = (0..8).map(|number| format!("nobody{number}")).collect();
    let shown = || nobodies.iter().map(|user| challenge(&way, user).1);
    let first: Vec<String> = shown().collect();
    let file = way.stage.authority.path("userlist.txt");
    let users = std::fs::read_to_string(&file).unwrap();
    let many = users
        .replace("\"app\"", "\"many\"")
        .replace("$4096:", "$10000:");
    way.stage.write_file(&format!("{users}{many}"));
    assert!(way.reload().contains("was read again"));
    assert_eq!(shape(&challenge(&way, "many").1).1, "10000");
    assert!(shown().eq(first.iter().cloned()));
}

/// A user's challenge is the same each time, as with PostgreSQL, and looks alike for unknown users.
#[test]
fn who_exists_is_not_shown() {
    let mut way = Stage::new(Auth::Scram).scram("require");
    let users = ["app", "nobody", "\u{e9}"];
    let before = users.map(|user| challenge(&way, user));
    assert_eq!(users.map(|user| challenge(&way, user)), before);
    way.proxy.terminate();
    way.proxy.restart();
    assert_eq!(users.map(|user| challenge(&way, user)), before);
    let challenge = |user| challenge(&way, user);
    let (app, nobody, other) = (challenge("app"), challenge("nobody"), challenge("other"));
    assert_ne!(nobody.1, other.1);
    assert_eq!((app.0, app.1.len()), (nobody.0, nobody.1.len()));
    let iterations = |text: &str| text.split_once(",i=").unwrap().1.to_owned();
    assert_eq!(iterations(&app.1), iterations(&nobody.1));

    let wrong = |user: &str| {
        let (_, _, end) = by_hand(&mut Client::clear(&way, user), "wrong");
        pretty(&end).replace(user, "<user>")
    };
    assert_eq!(wrong("app"), wrong("nobody"));
    assert!(wrong("app").contains("28P01"), "{}", wrong("app"));
}
