//! A client sees the same bytes through the proxy as on PostgreSQL itself.
//!
//! Each scenario runs three times, on PostgreSQL and through the proxy with the token given in two ways, and the
//! transcripts must be the same. Only two things may differ, and are blanked: a session's cancel key, and the pid in
//! a notification.

mod access_mode;
mod auth;
mod command_tags;
mod copy;
mod large;
mod out_of_band;
mod parting;
mod queries;
mod startup;

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, Message, PROTOCOL_3_0, Wire, pretty, trusted,
};

/// Created once before the scenario, so that object ids are the same in every run of it.
const SETUP: &str = "
    CREATE TABLE items (id int PRIMARY KEY, name text);
    ALTER TABLE items ALTER name SET STORAGE EXTERNAL;
    CREATE FUNCTION chatter(n int) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        FOR i IN 1..n LOOP RAISE NOTICE 'notice %', i USING DETAIL = 'a detail', HINT = 'a hint'; END LOOP;
        RETURN n;
    END $$;";

/// Resets the tables between two runs.
const RESET: &str = "TRUNCATE items";

/// A session that records all replies.
struct Talk<'a> {
    stage: &'a Stage,
    endpoint: Endpoint,
    wire: Wire,
    log: Vec<Message>,
}

impl Talk<'_> {
    fn send(&mut self, batch: &Batch) {
        self.wire.send(batch);
    }

    #[track_caller]
    fn read_until(&mut self, tag: u8) {
        let messages = self.wire.until(tag);
        self.log.extend(messages);
    }

    #[track_caller]
    fn run(&mut self, batch: &Batch) {
        self.send(batch);
        self.read_until(b'Z');
    }

    #[track_caller]
    fn query(&mut self, sql: &str) {
        self.run(&Batch::new().query(sql));
    }

    /// Says lines of messages in words.
    #[track_caller]
    fn say(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            println!("{line}");
            let messages = self.wire.say(line);
            self.log.extend(messages);
        }
    }
}

/// Runs a scenario on PostgreSQL and through the proxy with the token given in two ways, and compares.
#[track_caller]
fn check(scenario: impl Fn(&mut Talk<'_>)) {
    check_in(PROTOCOL_3_0, scenario);
}

/// In a version of the protocol.
#[track_caller]
fn check_in(version: u32, scenario: impl Fn(&mut Talk<'_>)) {
    check_both_ways(&Stage::with(SETUP), version, scenario);
}

/// As [`check`], for several scenarios on one server.
#[track_caller]
fn check_all(scenarios: &[fn(&mut Talk<'_>)]) {
    let stage = Stage::with(SETUP);
    for scenario in scenarios {
        check_both_ways(&stage, PROTOCOL_3_0, scenario);
    }
}

/// The same for scenarios in words, divided by empty lines.
#[track_caller]
fn check_said(scenarios: &str) {
    let stage = Stage::with(SETUP);
    for lines in scenarios.split("\n\n") {
        check_both_ways(&stage, PROTOCOL_3_0, |talk| talk.say(lines));
    }
}

#[track_caller]
fn check_both_ways(stage: &Stage, version: u32, scenario: impl Fn(&mut Talk<'_>)) {
    check_on(stage, version, ("fencing.token", "1"), &scenario);
    let by_options = ("options", "-c fencing.token=1");
    check_on(stage, version, by_options, &scenario);
}

/// As [`check`], once. For scenarios that move much data.
#[track_caller]
fn check_once(scenario: impl Fn(&mut Talk<'_>)) {
    let (stage, token) = (Stage::with(SETUP), ("fencing.token", "1"));
    check_on(&stage, PROTOCOL_3_0, token, scenario);
}

#[track_caller]
fn check_on(stage: &Stage, version: u32, token: (&str, &str), scenario: impl Fn(&mut Talk<'_>)) {
    let parameters = trusted(&[token]);
    let transcript = |endpoint: Endpoint| {
        stage.sql(RESET);
        let mut wire = Wire::connect(&endpoint);
        wire.startup(version, &parameters);
        let mut talk = Talk {
            stage,
            endpoint,
            wire,
            log: Vec::new(),
        };
        talk.read_until(b'Z');
        scenario(&mut talk);
        talk.log
    };
    compare(
        transcript(stage.postgres.tcp()),
        transcript(stage.proxy.endpoint()),
    );
}

/// Compares two transcripts after blanking values that differ between any two sessions.
#[track_caller]
fn compare(direct: Vec<Message>, proxied: Vec<Message>) {
    let (direct, proxied) = (blanked(direct), blanked(proxied));
    if direct != proxied {
        let at = direct
            .iter()
            .zip(&proxied)
            .take_while(|(a, b)| a == b)
            .count();
        let near = |log: &[Message]| pretty(&log[at.saturating_sub(3)..log.len().min(at + 8)]);
        panic!(
            "message {at} differs\n  direct:\n{}  through the proxy:\n{}",
            near(&direct),
            near(&proxied)
        );
    }
}

fn blanked(mut log: Vec<Message>) -> Vec<Message> {
    for message in &mut log {
        match message.tag {
            b'K' => message.body.fill(0),
            b'A' => message.body[..4].fill(0),
            _ => {}
        }
    }
    log
}
