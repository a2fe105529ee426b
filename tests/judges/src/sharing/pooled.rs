//! Plays a conversation through the proxy, and notes requests and replies.

use std::time::{Duration, Instant};

use super::conversation::{Conversation, Cycle, Kind, Turn, Who, Yields, packet, token};
use super::trial::Place;
use crate::mediation::conversation::{Database, with_tokens};
use pgpalisade_test_servers::wire::{Batch, Message, PROTOCOL_3_0, Wire};

/// Time after which a client counts as waiting for the connection that the other one keeps.
const BLOCKED: Duration = Duration::from_millis(25);
/// Time between two looks at both sockets.
const GLANCE: Duration = Duration::from_millis(4);
/// After this time without a message the session counts as silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Part of a conversation that is repeated without the proxy.
#[derive(Debug)]
pub enum Event {
    LoggedIn(Who, Vec<Message>),
    Said(Who, Vec<Cycle>, Vec<Message>),
    Left(Who),
    /// Rows in the table with an earlier token when a token was accepted.
    TookOver(u64, String),
    Notified,
    Silent(Who),
}

#[derive(Debug)]
struct Client {
    wire: Wire,
    /// The event whose replies are due, and their ReadyForQuery.
    owed: Option<(usize, usize)>,
    status: u8,
    has_discarded: bool,
}

#[derive(Debug)]
pub struct Play<'a> {
    place: &'a mut Place,
    conversation: &'a Conversation,
    number: u64,
    clients: [Option<Client>; 2],
    events: Vec<Event>,
}

pub fn play(place: &mut Place, conversation: &Conversation, number: u64) -> Vec<Event> {
    let mut play = Play {
        place,
        conversation,
        number,
        clients: [None, None],
        events: Vec::new(),
    };
    for turn in &conversation.turns {
        play.turn(turn);
    }
    for who in Who::BOTH {
        play.settle(who);
        play.leaves(who);
    }
    play.events
}

fn token_text(relative: &str, number: u64) -> String {
    String::from_utf8_lossy(&with_tokens(relative.as_bytes(), number)).into_owned()
}

impl Play<'_> {
    fn turn(&mut self, turn: &Turn) {
        match turn {
            Turn::Says(who, cycles) => {
                self.says(*who, cycles);
                self.settle(*who);
            }
            Turn::Sends(who, cycles) => self.says(*who, cycles),
            Turn::Leaves(who) => self.leaves(*who),
            Turn::TakesOver(relative) => {
                if self.place.world.declare(&token_text(relative, self.number)) {
                    let token = token(relative, self.number);
                    let before = self.place.rows_below(token);
                    self.events.push(Event::TookOver(token, before));
                }
            }
            Turn::Notifies => {
                for who in Who::BOTH {
                    self.settle(who);
                }
                self.place.notify_watched();
                self.events.push(Event::Notified);
            }
        }
    }

    fn says(&mut self, who: Who, cycles: &[Cycle]) {
        self.settle(who);
        if self.clients[who as usize].is_none() {
            self.logs_in(who);
        }
        let (number, at) = (self.number, self.events.len());
        let Some(client) = &mut self.clients[who as usize] else {
            return;
        };
        if cycles.is_empty() {
            return;
        }
        let world = &self.place.world;
        let oid = |function: &str| world.oid(Database::Utf8, function);
        client.wire.send(&packet(cycles, number, &oid));
        client.owed = Some((at, cycles.len()));
        self.events
            .push(Event::Said(who, cycles.to_vec(), Vec::new()));
    }

    fn logs_in(&mut self, who: Who) {
        let startup = &self.conversation.clients[who as usize];
        let told = startup.token.map(|token| token_text(token, self.number));
        let (endpoint, database) = self.place.watched();
        let mut parameters = vec![("user", "postgres"), ("database", &*database)];
        parameters.extend(told.as_deref().map(|token| ("fencing.token", token)));
        parameters.extend(&startup.parameters);
        let mut wire = Wire::connect(&endpoint);
        wire.startup(PROTOCOL_3_0, &parameters);
        wire.set_patience(GLANCE);
        self.clients[who as usize] = Some(Client {
            wire,
            owed: Some((self.events.len(), 1)),
            status: b'I',
            has_discarded: false,
        });
        self.events.push(Event::LoggedIn(who, Vec::new()));
        self.settle(who);
    }

    fn leaves(&mut self, who: Who) {
        if let Some(mut client) = self.clients[who as usize].take() {
            if client.owed.is_none() {
                client.wire.send(&Batch::new().terminate());
            }
            self.events.push(Event::Left(who));
        }
    }

    /// Reads all due replies of a client. If the other one keeps the connection, it gives that up.
    fn settle(&mut self, who: Who) {
        let mut since = Instant::now();
        while self.owes(who) {
            let heard = [who, who.other()].map(|who| self.hears(who));
            if heard.contains(&true) {
                since = Instant::now();
            } else if since.elapsed() > PATIENCE {
                self.events.push(Event::Silent(who));
                self.clients[who as usize] = None;
            } else if since.elapsed() > BLOCKED && !self.owes(who.other()) {
                self.gives_up(who.other());
            }
        }
    }

    fn owes(&self, who: Who) -> bool {
        let client = &self.clients[who as usize];
        client.as_ref().is_some_and(|client| client.owed.is_some())
    }

    /// Reads what is there of the due replies.
    fn hears(&mut self, who: Who) -> bool {
        let mut has_heard = false;
        while let Some(client) = &mut self.clients[who as usize]
            && let Some((at, cycles)) = client.owed
            && let Ok(message) = client.wire.try_read()
        {
            has_heard = true;
            match message.tag {
                b'Z' => {
                    client.status = message.body.first().copied().unwrap_or_default();
                    client.owed = (cycles > 1).then_some((at, cycles - 1));
                }
                0 => self.clients[who as usize] = None,
                _ => {}
            }
            if let Event::LoggedIn(_, heard) | Event::Said(_, _, heard) = &mut self.events[at] {
                heard.push(message);
            }
        }
        has_heard
    }

    fn gives_up(&mut self, who: Who) {
        let Some(client) = &mut self.clients[who as usize] else {
            return;
        };
        let is_idle = client.status == b'I';
        if is_idle && (client.has_discarded || self.conversation.yields == Yields::Leaves) {
            return self.leaves(who);
        }
        client.has_discarded |= is_idle;
        let cycle = if is_idle {
            Cycle::query(Kind::Discards, "DISCARD ALL")
        } else {
            Cycle::query(Kind::Plain, "COMMIT")
        };
        self.says(who, &[cycle]);
    }
}
