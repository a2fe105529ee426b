//! Properties of every conversation.
//!
//! `PGPALISADE_CORE_CONVERSATIONS=100000 PGPALISADE_CORE_SEED=7 cargo test -p pgpalisade-session properties` runs
//! more of them. If a conversation fails, its seed is printed.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgpalisade_policies::{VerdictCache, classify};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::super::action::{Action, Disposition, Prerequisite};
use super::super::frame::Frame;
use super::super::token_request::Obtained;
use super::conversation::{Client, Kind};
use super::driver::{Authority, Course, Driver, Last, closing};
use super::frames::{parts, query, split};
use super::postgres::Postgres;
use super::sql::{DEFAULT_ACCESS, TOKEN};
use super::subject::{self, identified};
use crate::rejection::Rejection;
use crate::wire::{frontend, header};

/// Conversations of each property, unless the environment sets another number.
const CONVERSATIONS: u64 = 1500;

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |said| said.parse().unwrap())
}

/// Checks a property in random conversations.
fn check(property: impl Fn(&mut StdRng, &RefCell<VerdictCache>)) {
    let verdicts = RefCell::new(VerdictCache::new(1 << 22));
    let first = number("PGPALISADE_CORE_SEED", 1);
    for seed in first..first + number("PGPALISADE_CORE_CONVERSATIONS", CONVERSATIONS) {
        let mut rng = StdRng::seed_from_u64(seed);
        let run = catch_unwind(AssertUnwindSafe(|| property(&mut rng, &verdicts)));
        if let Err(panic) = run {
            eprintln!("PGPALISADE_CORE_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

/// Messages in readable form.
fn show(messages: &[Vec<u8>]) -> String {
    let lines = messages.iter().map(|message| {
        let (tag, body) = parts(message);
        format!("{} {}\n", char::from(tag), body.escape_ascii())
    });
    lines.collect()
}

#[test]
fn who_holds_the_current_token_gets_what_postgresql_says() {
    check(|rng, verdicts| {
        let messages = Client::talk(rng, Kind::Faithful);
        let mut direct = Postgres::new(&[(DEFAULT_ACCESS, "off"), (TOKEN, "5")]);
        let mut expect = Vec::new();
        for message in messages.iter().chain(&closing()) {
            let (tag, body) = parts(message);
            direct.read(tag, body);
            expect.extend(direct.take());
        }
        let server = Postgres::new(&[(DEFAULT_ACCESS, "off"), (TOKEN, "5")]);
        let mut driver = Driver::new(verdicts, rng, Authority::Accepts, server);
        driver.start_with("5");
        for message in &messages {
            driver.send(message);
        }
        driver.finish();
        assert_eq!(driver.course() == Course::Ended, direct.is_closed());
        if !direct.is_closed() {
            let found = split(&driver.to_client);
            assert!(
                found == expect,
                "directly:\n{}through the proxy:\n{}",
                show(&expect),
                show(&found)
            );
        }
    });
}

#[test]
fn nobody_writes_without_the_current_token() {
    check(|rng, verdicts| {
        let messages = Client::talk(rng, Kind::Any);
        let startups: [(&str, Option<&str>); 8] = [
            ("on", None),
            ("on", None),
            ("on", None),
            ("on", Some("5")),
            ("off", Some("5")),
            ("off", Some("other=5")),
            ("off", Some("next")),
            ("off", Some("after:5")),
        ];
        let (access, token) = startups[rng.random_range(0..startups.len())];
        let mut startup = vec![(DEFAULT_ACCESS, access)];
        startup.extend(token.map(|token| (TOKEN, token)));
        let takeovers = rng.random_range(0..3);
        let authority = if rng.random() {
            Authority::Accepts
        } else {
            Authority::IsFickle
        };
        let at: Vec<usize> = (0..takeovers).map(|_| rng.random_range(0..40)).collect();
        let server = Postgres::new(&startup);
        let mut driver = Driver::new(verdicts, rng, Authority::Accepts, server);
        if let Some(token) = token {
            driver.start_with(token);
        }
        driver.answers(authority);
        for (number, message) in messages.iter().enumerate() {
            if at.contains(&number) {
                driver.depose();
            }
            driver.send(message);
        }
        driver.finish();
    });
}

/// Two clients share two servers. Each is lent now one, now the other, between its transactions; some servers are lost.
#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn nobody_writes_with_the_token_of_another_client() {
    check(|rng, verdicts| {
        let mut talks = [(); 2].map(|()| Client::talk(rng, Kind::Any).into_iter().peekable());
        let authority = if rng.random() {
            Authority::Accepts
        } else {
            Authority::IsFickle
        };
        let access = ["on", "off"][rng.random_range(0..2)];
        let login = [
            Some("5"),
            [None, Some("5"), Some("other=5")][rng.random_range(0..3)],
        ];
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        let mut driver = Driver::new(verdicts, rng, Authority::Accepts, Postgres::new(&[]));
        for (number, token) in login.into_iter().enumerate() {
            driver.log_in(Postgres::lent(access), token);
            let (client, server) = driver.part().unwrap();
            clients.push(Some(client));
            servers.push(Some((number, server)));
        }
        driver.answers(authority);
        let mut last = [0, 1];
        loop {
            let (who, at) = (driver.choose(2), driver.choose(2));
            let (owner, server) = servers[at].take().unwrap();
            let user = if owner == who && last[who] == at {
                Last::Own
            } else {
                Last::Other
            };
            last[who] = at;
            if driver.choose(12) == 0 {
                driver.depose();
            }
            let mut client = clients[who].take().unwrap();
            while let Some(message) = talks[who].peek_mut()
                && client.is_answered(message, verdicts)
            {
                talks[who].next();
            }
            if talks[who].peek().is_none() {
                return;
            }
            driver.lend(client, server, user);
            let parted = loop {
                let refused = driver.part_refused();
                let lost = if refused.is_none() && driver.choose(25) == 0 {
                    driver.lose_server()
                } else {
                    None
                };
                if let Some(client) = refused.or(lost) {
                    driver.log_in(Postgres::lent(access), None);
                    break (client, driver.part().unwrap().1);
                }
                match talks[who].next() {
                    Some(message) => driver.send(&message),
                    None => return driver.finish(),
                }
                if driver.course() == Course::Ended {
                    return;
                }
                if driver.choose(2) == 0
                    && let Some(parted) = driver.part()
                {
                    break parted;
                }
            };
            clients[who] = Some(parted.0);
            servers[at] = Some((who, parted.1));
        }
    });
}

/// A token of another scope permits no write here: a write that hides before it is still guarded.
#[test]
fn a_hidden_write_in_front_of_another_scope_s_token() {
    check(|rng, verdicts| {
        let startup: &[(&str, &str)] = &[(DEFAULT_ACCESS, "on"), (TOKEN, "5")];
        let mut driver = Driver::new(verdicts, rng, Authority::Accepts, Postgres::new(startup));
        driver.start_with("5");
        for text in [
            "BEGIN",
            "SET fencing.token = ''",
            "SELECT f(); SET fencing.token = 'other=5'",
        ] {
            driver.send(&query(text));
        }
        driver.finish();
    });
}

/// A write that hides after a declaration in the same text is a write, so its COMMIT is refused after a takeover.
#[test]
fn a_commit_of_a_hidden_write_behind_a_declaration() {
    check(|rng, verdicts| {
        let startup: &[(&str, &str)] = &[(DEFAULT_ACCESS, "on"), (TOKEN, "5")];
        let mut driver = Driver::new(verdicts, rng, Authority::Accepts, Postgres::new(startup));
        driver.start_with("5");
        driver.send(&query("BEGIN"));
        driver.send(&query(
            "SELECT 1; SET LOCAL fencing.token = '7'; SELECT f()",
        ));
        driver.depose();
        driver.send(&query("COMMIT"));
        driver.finish();
    });
}

#[test]
fn no_message_of_either_side_makes_it_panic() {
    check(|rng, verdicts| {
        let fence = subject::fence();
        let mut session = subject::session(fence.clone());
        if rng.random() {
            let wanted = subject::wanted(&fence, "5");
            session
                .on_declared(&wanted, identified(), Ok(Obtained::default()))
                .unwrap();
            session.start_with(&wanted);
        }
        let mut sent = 0;
        for _ in 0..rng.random_range(1..60) {
            let messages = if rng.random() {
                vec![Client::noise(rng)]
            } else {
                Client::talk(rng, Kind::Any)
            };
            for message in messages.iter().take(6) {
                let (tag, body) = parts(message);
                if rng.random() {
                    let _ = session.on_backend(
                        *b"123CDEGINSTZnstAV".get(rng.random_range(0..17)).unwrap(),
                        body,
                    );
                }
                if rng.random() {
                    match session.on_backend(tag, body) {
                        Disposition::Terminated => drop(session.on_terminated(body)),
                        Disposition::End(_) => return,
                        Disposition::Relay | Disposition::Drop => {}
                    }
                }
                let Ok(Some(header)) = header::parse(message, frontend::body_max) else {
                    continue;
                };
                match session.on_frontend(Frame::new(header, message), verdicts) {
                    Action::Need(prerequisite) => satisfy(&mut session, prerequisite),
                    Action::End(_) | Action::Terminate => return,
                    _ => {}
                }
                let output = session.output();
                sent += output.to_server.len() + output.to_client.len();
                assert!(sent < 1 << 20);
                *output = Default::default();
            }
        }
    });
}

/// Carries out a prerequisite in the simplest way, with or without replies.
fn satisfy(session: &mut super::super::Session, prerequisite: Prerequisite) {
    match prerequisite {
        Prerequisite::Replies => session.ask_for_replies(),
        Prerequisite::Verdict(unread) => {
            session.on_verdict(classify(&unread.text, unread.encoding).into())
        }
        Prerequisite::History => session.on_history("[]".to_owned()),
        Prerequisite::Access(change) => {
            session.begin_set_access(change);
            let _ = session.end_set_access(change);
        }
        Prerequisite::Tokens(wanted, _) => match session.may_declare(&wanted) {
            Ok(()) => drop(session.on_declared(&wanted, identified(), Ok(Obtained::default()))),
            Err(_) => session.refuse_waiting(Box::new(Rejection::token_change_after_write())),
        },
    }
}
