//! Generates a conversation from a seed.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::conversation::{Conversation, Cycle, Kind, Startup, Turn, Who, Yields};
use super::{leavings, looks};
use crate::mediation::conversation::{Message, Target};
use crate::mediation::words::{once_in, one};

/// Tokens of both startup packets.
const TOKENS: [[Option<&str>; 2]; 10] = [
    [None, None],
    [None, None],
    [Some("@0"), None],
    [Some("@0"), None],
    [Some("@0"), None],
    [None, Some("@0")],
    [Some("@0"), Some("@0")],
    [Some("@0"), Some("@0")],
    [Some("@0"), Some("@1")],
    [Some("@1"), Some("@0")],
];

const PARAMETERS: [(&str, &str); 5] = [
    ("application_name", "web"),
    ("options", "-c work_mem=321kB"),
    ("DateStyle", "SQL, DMY"),
    ("search_path", "b, public"),
    ("app.name", "startup"),
];

#[derive(Debug)]
struct Generator {
    random: StdRng,
    /// Whether a setting that decides what a text means may have changed.
    is_unsettled: [bool; 2],
    /// Number of things that were left unseen.
    unseen: u32,
    turns: Vec<Turn>,
}

pub fn conversation(seed: u64) -> Conversation {
    let mut random = StdRng::seed_from_u64(seed);
    let tokens = one(&mut random, &TOKENS);
    let backends = if once_in(&mut random, 4) { 2 } else { 1 };
    let yields = one(&mut random, &[Yields::Discards, Yields::Leaves]);
    let mut parameters = Vec::new();
    if once_in(&mut random, 3) {
        parameters.push(one(&mut random, &PARAMETERS));
    }
    let mut clients = tokens.map(|token| Startup {
        token,
        parameters: parameters.clone(),
    });
    if once_in(&mut random, 12) {
        clients[1].parameters = vec![("application_name", "other")];
    }
    let mut generator = Generator {
        random,
        is_unsettled: [false; 2],
        unseen: 0,
        turns: Vec::new(),
    };
    for _ in 0..generator.random.random_range(3..10) {
        let who = generator.who();
        let cycles = generator.cycles(who);
        generator.play(who, cycles);
    }
    let who = generator.who();
    for who in [who, who.other()] {
        let mut looks = generator.looks(9);
        looks.push(looks::pid());
        generator.turns.push(Turn::Says(who, looks));
    }
    Conversation {
        clients,
        backends,
        yields,
        turns: generator.turns,
    }
}

impl Generator {
    fn who(&mut self) -> Who {
        one(&mut self.random, &Who::BOTH)
    }

    fn looks(&mut self, count: usize) -> Vec<Cycle> {
        let mut looks = looks::all();
        looks.shuffle(&mut self.random);
        looks.truncate(count);
        looks
    }

    fn cycles(&mut self, who: Who) -> Vec<Cycle> {
        match self.random.random_range(0..24) {
            0..=7 => self.leaves(who),
            8..=11 => (0..self.random.random_range(1..4))
                .map(|_| self.statement(who))
                .collect(),
            12 => self.declares(who),
            13 => self.writes(who),
            14 => self.deposed(who),
            15 => self.discards(who),
            16 => self.moves(who),
            17 => self.deposed_in_flight(who),
            18 => self.unsettles(who),
            _ => {
                let count = self.random.random_range(2..6);
                self.looks(count)
            }
        }
    }

    /// In one packet, or one after the other; with a break in between, if the client leaves or others come.
    fn play(&mut self, who: Who, cycles: Vec<Cycle>) {
        match self.random.random_range(0..8) {
            0..=2 => self.turns.push(Turn::Says(who, cycles)),
            3 => self.turns.push(Turn::Sends(who, cycles)),
            4 => {
                let cut = self.random.random_range(0..=cycles.len());
                self.turns.push(Turn::Sends(who, cycles[..cut].to_vec()));
                self.turns.push(Turn::Leaves(who));
                self.is_unsettled[who as usize] = false;
            }
            5 => {
                let cut = self.random.random_range(0..=cycles.len());
                self.turns.push(Turn::Says(who, cycles[..cut].to_vec()));
                self.comes_between(who);
                self.turns.push(Turn::Says(who, cycles[cut..].to_vec()));
            }
            _ => {
                let each = cycles.into_iter();
                self.turns
                    .extend(each.map(|one| Turn::Says(who, vec![one])));
            }
        }
    }

    fn comes_between(&mut self, who: Who) {
        match self.random.random_range(0..4) {
            0 => self
                .turns
                .push(Turn::TakesOver(one(&mut self.random, &["@1", "@2"]))),
            1 => self.turns.push(Turn::Notifies),
            _ => {
                let looks = self.looks(4);
                self.turns.push(Turn::Says(who.other(), looks));
            }
        }
    }

    fn leaves(&mut self, who: Who) -> Vec<Cycle> {
        let mut cycle = leavings::leaving(&mut self.random, who, &mut self.unseen);
        let is_by_name = !self.is_unsettled[who as usize] && once_in(&mut self.random, 6);
        let prepares = is_by_name.then(|| by_name(&mut cycle)).flatten();
        self.is_unsettled[who as usize] |= cycle.kind != Kind::Plain;
        let leaves = self.leaves_somewhere(who, cycle);
        prepares.into_iter().chain(leaves).collect()
    }

    /// Outside or inside a transaction that is committed, fails, or is rolled back.
    fn leaves_somewhere(&mut self, who: Who, cycle: Cycle) -> Vec<Cycle> {
        let plain = |sql: &str| Cycle::query(Kind::Plain, sql);
        let token = one(&mut self.random, &["@0", "@0", "@1"]);
        let mut cycles = vec![plain("BEGIN")];
        if once_in(&mut self.random, 6) {
            let set = format!("SET LOCAL fencing.token = '{token}'");
            cycles.push(Cycle::query(Kind::DeclaresLocally(token), set));
        }
        let statement = once_in(&mut self.random, 2).then(|| self.statement(who));
        match self.random.random_range(0..9) {
            0..=3 => return vec![cycle],
            4 => {
                cycles.push(cycle);
                cycles.extend(statement);
                cycles.push(plain("COMMIT"));
            }
            5 => cycles.extend([cycle, plain("ROLLBACK")]),
            6 => cycles.extend([
                plain("SAVEPOINT x"),
                cycle,
                plain("ROLLBACK TO x"),
                plain("COMMIT"),
            ]),
            7 => cycles.extend([cycle, plain("SELECT 1/0"), plain("COMMIT")]),
            _ => {
                let mut messages = cycle.messages;
                if let [Message::Query(parts)] = &mut messages[..] {
                    let end = one(&mut self.random, &["SELECT 1/0", "SELECT 2"]);
                    parts.push(end.into());
                }
                let kind = cycle.kind;
                return vec![Cycle { kind, messages }];
            }
        }
        cycles
    }

    fn declares(&mut self, who: Who) -> Vec<Cycle> {
        let token = one(&mut self.random, &["@0", "@0", "@1"]);
        let declare = match self.random.random_range(0..4) {
            0 => Cycle::query(Kind::Declares(None), "SET fencing.token = ''"),
            _ => Cycle::query(
                Kind::Declares(Some(token)),
                format!("SET fencing.token = '{token}'"),
            ),
        };
        let mut cycles = vec![declare];
        cycles.extend(self.writes(who));
        cycles
    }

    /// A row has its writer's letter.
    fn writes(&mut self, who: Who) -> Vec<Cycle> {
        let insert = who.says("INSERT INTO public.log VALUES ('% @0')");
        let call = format!("SELECT public.runs('{}')", insert.replace('\'', "''"));
        let texts = [insert, call, "SELECT 1".to_owned()];
        let mut cycles = Vec::new();
        for _ in 0..self.random.random_range(1..3) {
            let text = &texts[self.random.random_range(0..texts.len())];
            cycles.push(Cycle::query(Kind::Plain, text.as_str()));
        }
        if once_in(&mut self.random, 2) {
            cycles.insert(0, Cycle::query(Kind::Plain, "BEGIN"));
            cycles.push(Cycle::query(Kind::Plain, "COMMIT"));
        }
        cycles
    }
    /// A takeover in the middle of a transaction. Returns its end.
    fn deposed(&mut self, who: Who) -> Vec<Cycle> {
        let insert = who.says("INSERT INTO public.log VALUES ('% @0')");
        let begins = ["BEGIN", &insert].map(|sql| Cycle::query(Kind::Plain, sql));
        let by = one(&mut self.random, &["@1", "@2"]);
        self.turns.push(Turn::Says(who, begins.into()));
        self.turns.push(Turn::TakesOver(by));
        vec![Cycle::query(Kind::Plain, "COMMIT")]
    }
    /// A write that a takeover meets in flight.
    fn deposed_in_flight(&mut self, who: Who) -> Vec<Cycle> {
        let write = who.says("INSERT INTO public.log VALUES ('% @0'); SELECT pg_sleep(0.1)");
        let by = one(&mut self.random, &["@1", "@2"]);
        let write = Cycle::query(Kind::Plain, write);
        self.turns.push(Turn::Sends(who, vec![write]));
        self.turns.push(Turn::TakesOver(by));
        self.looks(2)
    }

    /// Without its token a client gets another connection, and then perhaps the first one again.
    fn moves(&mut self, who: Who) -> Vec<Cycle> {
        let runs = || Cycle::extended(Kind::Statement, run(b"s"));
        vec![
            self.prepares(who, b"s"),
            Cycle::query(Kind::Declares(None), "SET fencing.token = ''"),
            self.prepares(who, b"s"),
            runs(),
            Cycle::query(Kind::Declares(Some("@0")), "SET fencing.token = '@0'"),
            runs(),
            self.statement(who),
        ]
    }
    /// A statement that was parsed before its `DateStyle` changes.
    fn unsettles(&mut self, who: Who) -> Vec<Cycle> {
        let prepares = vec![self.prepares(who, b"s")];
        self.turns.push(Turn::Says(who, prepares));
        let looks = self.looks(1);
        self.turns.push(Turn::Says(who.other(), looks));
        self.is_unsettled[who as usize] = true;
        vec![
            Cycle::query(Kind::Plain, "BEGIN"),
            Cycle::query(Kind::Unsettling, "SET LOCAL DateStyle = 'German'"),
            Cycle::extended(Kind::Statement, run(b"s")),
            Cycle::query(Kind::Plain, "COMMIT"),
        ]
    }

    fn discards(&mut self, who: Who) -> Vec<Cycle> {
        let texts = [
            "DISCARD ALL",
            "RESET ALL",
            "DEALLOCATE ALL",
            "UNLISTEN *",
            "CLOSE ALL",
        ];
        let sql = one(&mut self.random, &texts);
        let kind = match sql {
            "DISCARD ALL" => Kind::Discards,
            "RESET ALL" => Kind::Resets,
            _ => Kind::Plain,
        };
        self.is_unsettled[who as usize] |= kind == Kind::Resets;
        vec![Cycle::query(kind, sql)]
    }
    /// A text whose result depends on `DateStyle`.
    fn text(&mut self, who: Who) -> Vec<u8> {
        let nth = self.random.random_range(0..9);
        let text = who.says(&format!("SELECT '%{nth}', date '1.2.2020'"));
        text.into_bytes()
    }

    fn prepares(&mut self, who: Who, name: &[u8]) -> Cycle {
        let close = Message::Close(Target::Statement, name.to_vec());
        let parse = Message::Parse(name.to_vec(), self.text(who));
        Cycle::extended(Kind::Statement, [close, parse])
    }

    /// Prepared statements of the protocol. Both clients use the same names, for other texts.
    fn statement(&mut self, who: Who) -> Cycle {
        let name = one(&mut self.random, &["s", "s", "z", ""])
            .as_bytes()
            .to_vec();
        let text = self.text(who);
        let parse = || Message::Parse(name.clone(), text.clone());
        let close = || Message::Close(Target::Statement, name.clone());
        let kind = Kind::Statement;
        match self.random.random_range(0..10) {
            0..=1 => self.prepares(who, &name),
            2 if !self.is_unsettled[who as usize] => Cycle::extended(kind, [parse()]),
            3 => Cycle::extended(kind, [Message::Describe(Target::Statement, name)]),
            4 => Cycle::extended(kind, [close()]),
            5 if !name.is_empty() => {
                let verb = one(&mut self.random, &["EXECUTE ", "DEALLOCATE "]);
                Cycle::query(kind, [verb.as_bytes(), &name].concat())
            }
            6 => {
                let messages = [close(), parse()].into_iter().chain(run(&name));
                Cycle::extended(Kind::Plain, messages)
            }
            7 => {
                let wrong = Message::Parse(Vec::new(), "wrong".into());
                let messages = run(&name).into_iter().chain([wrong]);
                Cycle::extended(kind, messages.chain(run("s".as_bytes())))
            }
            _ => Cycle::extended(kind, run(&name)),
        }
    }
}

/// Has a statement run by EXECUTE. Returns its preparation by the protocol.
fn by_name(cycle: &mut Cycle) -> Option<Cycle> {
    let [Message::Query(parts)] = &mut cycle.messages[..] else {
        return None;
    };
    let [text] = &mut parts[..] else { return None };
    if text.contains(&b';') {
        return None;
    }
    let text = std::mem::replace(text, b"EXECUTE l".to_vec());
    let close = Message::Close(Target::Statement, b"l".to_vec());
    let parse = Message::Parse(b"l".to_vec(), text);
    Some(Cycle::extended(Kind::Plain, [close, parse]))
}

fn run(name: &[u8]) -> [Message; 2] {
    let bind = Message::Bind(Vec::new(), name.to_vec(), Vec::new());
    [bind, Message::Execute(Vec::new(), 0)]
}
