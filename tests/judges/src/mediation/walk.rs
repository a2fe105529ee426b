//! Walks through a transaction: each step fits the earlier ones, so that few lead nowhere. Each walk prefers its own
//! steps; the conversation gives it the settings and tables.

use clap::ValueEnum;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::conversation::{Message, Name, Session, Sql};
use super::generator::Generator;
use super::steering::data_of;
use super::words::{Kind, once_in, one, pick};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stride {
    Begin,
    End,
    Save,
    Release,
    Back,
    Steer,
    Harmless,
    Pay,
    Declare,
    Fetch,
    Bind,
    Execute,
    Token,
    Other,
}

impl Stride {
    /// Likely next steps.
    const fn leads_to(self) -> &'static [Self] {
        use Stride::*;
        match self {
            Begin => &[Save, Steer, Declare, Bind],
            Save => &[Steer, Token],
            Token => &[Harmless, Pay],
            Harmless => &[Release, Back, End],
            Steer => &[Release, Back, End, Pay, Execute],
            Declare => &[End, Fetch],
            Bind => &[Steer, Execute],
            End | Release | Back | Fetch | Execute => &[Pay],
            Pay | Other => &[Begin, Steer],
        }
    }
}

const MARCH: [&[Stride]; 9] = {
    use Stride::*;
    [
        &[Begin],
        &[Save],
        &[Steer, Declare, Declare, Bind],
        &[Token, Pay],
        &[Harmless, Harmless, Fetch, Execute, Steer],
        &[Release, Release, Back, End, End],
        &[Pay],
        &[End],
        &[Pay],
    ]
};

enum Part {
    Text(Sql),
    Messages(Vec<Message>),
}

#[derive(Default)]
struct WalkState {
    in_block: bool,
    savepoints: usize,
    cursors: usize,
    bound: Vec<Name>,
}

impl WalkState {
    fn fits(&self, stride: Stride, session: Session) -> bool {
        match stride {
            Stride::Begin => !self.in_block,
            Stride::End | Stride::Save | Stride::Declare => self.in_block,
            Stride::Release | Stride::Back => self.savepoints > 0,
            Stride::Fetch => self.cursors > 0,
            Stride::Execute => !self.bound.is_empty(),
            Stride::Token => session == Session::Holder,
            Stride::Bind => self.bound.len() < 2,
            Stride::Steer | Stride::Harmless | Stride::Pay | Stride::Other => true,
        }
    }
}

const ENDS: &str = "COMMIT | COMMIT | COMMIT | COMMIT | COMMIT | COMMIT | COMMIT AND CHAIN | COMMIT AND CHAIN | \
    ROLLBACK | ROLLBACK AND CHAIN | END";

const HARMLESS: [&str; 6] = [
    "SELECT public.harmless()",
    "SELECT public.harmless()",
    "SELECT public.harmless()",
    "SELECT 1",
    "SHOW transaction_read_only",
    "SHOW default_transaction_read_only",
];

const TOKENS: &str = "SET fencing.token = '' | SET fencing.token = '' | SET LOCAL fencing.token = '' | \
    SET fencing.token = 'other=@0' | SET fencing.token = '@0' | SET LOCAL fencing.token = '@0' | \
    RESET fencing.token";

/// `$t` is a table that the session may confuse with another.
const TABLE_WRITES: [&str; 6] = [
    "INSERT INTO $t VALUES ('x')",
    "INSERT INTO $t VALUES ('x')",
    "UPDATE $t SET what = 'x'",
    "DELETE FROM $t",
    "WITH w AS (INSERT INTO $t VALUES ('x') RETURNING 1) TABLE w",
    "COPY $t (what) FROM STDIN",
];

const TABLE_READS: [&str; 4] = [
    "SELECT what FROM $t",
    "TABLE $t",
    "COPY $t TO STDOUT",
    "WITH r AS (TABLE $t) SELECT r FROM r",
];

impl Generator {
    /// Sends several steps in one of many groupings.
    pub(super) fn walk(&mut self) {
        let mut state = WalkState::default();
        let mut parts = if once_in(&mut self.random, 3) {
            self.wander(&mut state)
        } else {
            self.march(&mut state)
        };
        if state.in_block && !once_in(&mut self.random, 4) {
            self.stride(Stride::End, &mut state, &mut parts);
            self.stride(Stride::Pay, &mut state, &mut parts);
        }
        self.group(parts);
    }

    /// Goes through a whole transaction, with some steps left out.
    fn march(&mut self, state: &mut WalkState) -> Vec<Part> {
        let mut parts = Vec::new();
        for step in MARCH {
            let session = self.words.session;
            let fitting: Vec<_> = step
                .iter()
                .filter(|stride| state.fits(**stride, session))
                .collect();
            if once_in(&mut self.random, 9) {
                self.stride(Stride::Other, state, &mut parts);
            }
            if let (Some(stride), false) = (
                fitting.choose(&mut self.random),
                once_in(&mut self.random, 5),
            ) {
                self.stride(**stride, state, &mut parts);
            }
        }
        parts
    }

    fn wander(&mut self, state: &mut WalkState) -> Vec<Part> {
        let session = self.words.session;
        let likes = Stride::value_variants().iter().map(|stride| match stride {
            Stride::Pay | Stride::Begin | Stride::End => 2,
            Stride::Steer => one(&mut self.random, &[1, 2, 4]),
            _ => one(&mut self.random, &[0, 1, 1, 3]),
        });
        let likes: Vec<u32> = likes.collect();
        let (mut parts, mut last) = (Vec::new(), Stride::Pay);
        for _ in 0..self.random.random_range(3..11) {
            let weight = |(stride, &like): (&Stride, &u32)| {
                let is_next = last.leads_to().contains(stride);
                (*stride, if is_next { 4 * like.max(1) } else { like })
            };
            let fitting: Vec<_> = Stride::value_variants()
                .iter()
                .zip(&likes)
                .filter(|(stride, _)| state.fits(**stride, session))
                .map(weight)
                .collect();
            let Ok((stride, _)) = fitting.choose_weighted(&mut self.random, |(_, like)| *like)
            else {
                break;
            };
            last = *stride;
            self.stride(last, state, &mut parts);
        }
        parts
    }

    fn stride(&mut self, stride: Stride, state: &mut WalkState, parts: &mut Vec<Part>) {
        let random = &mut self.random;
        let text: Sql = match stride {
            Stride::Begin => {
                state.in_block = true;
                pick(
                    random,
                    "BEGIN | BEGIN | BEGIN | START TRANSACTION | BEGIN READ ONLY",
                )
                .into()
            }
            Stride::End => {
                let end = pick(random, ENDS);
                *state = WalkState {
                    in_block: end.ends_with("CHAIN"),
                    ..WalkState::default()
                };
                end.into()
            }
            Stride::Save => {
                state.savepoints += 1;
                "SAVEPOINT s".into()
            }
            Stride::Release => {
                state.savepoints -= 1;
                "RELEASE s".into()
            }
            Stride::Back => "ROLLBACK TO s".into(),
            Stride::Steer => self.words.steering(random),
            Stride::Harmless => one(random, &HARMLESS).into(),
            Stride::Pay => self.pay(),
            Stride::Declare => {
                state.cursors += 1;
                self.declare_cursor()
            }
            Stride::Fetch => pick(
                random,
                "FETCH c | FETCH ALL FROM c | MOVE c | MOVE ALL IN c | CLOSE c",
            )
            .into(),
            Stride::Token => pick(random, TOKENS).into(),
            Stride::Other => self.statement(),
            Stride::Bind => return parts.push(self.bound(state)),
            Stride::Execute => {
                let portal = state.bound.pop().unwrap_or_default();
                return parts.push(Part::Messages(vec![Message::Execute(portal, 0)]));
            }
        };
        parts.push(Part::Text(text));
    }

    fn declare_cursor(&mut self) -> Sql {
        let random = &mut self.random;
        let declare: &[u8] = if once_in(random, 3) {
            b"DECLARE c CURSOR FOR "
        } else {
            b"DECLARE c CURSOR WITH HOLD FOR "
        };
        let query = if once_in(random, 4) {
            self.words.query(random)
        } else {
            self.words.steering_query(random)
        };
        [declare, &query].concat()
    }

    fn bound(&mut self, state: &mut WalkState) -> Part {
        let name: Name = if state.bound.is_empty() {
            "p".into()
        } else {
            "q".into()
        };
        let statement: Name = if once_in(&mut self.random, 2) {
            "t".into()
        } else {
            Name::new()
        };
        let sql = if once_in(&mut self.random, 3) {
            self.words.steering_query(&mut self.random)
        } else {
            self.pay()
        };
        state.bound.push(name.clone());
        Part::Messages(vec![
            Message::Parse(statement.clone(), sql),
            Message::Bind(name, statement, Vec::new()),
        ])
    }

    /// Goal of the walk: a statement that changes or shows something forbidden if it is misjudged.
    fn pay(&mut self) -> Sql {
        let forms: &[&str] = match self.words.session {
            Session::Neighbour | Session::Free => &TABLE_WRITES,
            Session::Reader if once_in(&mut self.random, 3) => &TABLE_WRITES,
            Session::Reader => &TABLE_READS,
            Session::Faithful | Session::Late | Session::Ruler => {
                match self.random.random_range(0..4) {
                    0 => &HARMLESS,
                    1 => return self.of(Kind::Hidden),
                    _ => &["INSERT INTO public.log VALUES ('x')"],
                }
            }
            _ => return self.of(Kind::Hidden),
        };
        let table = self.words.tables.choose(&mut self.random);
        let table = table.map_or("jobs", String::as_str);
        one(&mut self.random, forms).replace("$t", table).into()
    }

    /// As one text, several, or messages of the extended protocol.
    fn group(&mut self, parts: Vec<Part>) {
        let style = self.random.random_range(0..5);
        let mut texts: Vec<Sql> = Vec::new();
        for part in parts {
            let sql = match part {
                Part::Text(sql) => sql,
                Part::Messages(messages) => {
                    self.say_texts(&mut texts);
                    messages.into_iter().for_each(|message| self.say(message));
                    if style > 2 {
                        self.pause();
                    }
                    continue;
                }
            };
            let data = data_of(&sql);
            match style {
                0 | 1 => {
                    texts.push(sql);
                    if !data.is_empty() || (style == 1 && once_in(&mut self.random, 2)) {
                        self.say_texts(&mut texts);
                        data.into_iter().for_each(|message| self.say(message));
                        self.breathe();
                    }
                }
                2 => {
                    self.extended(sql);
                    data.into_iter().for_each(|message| self.say(message));
                    if once_in(&mut self.random, 5) {
                        self.say(Message::Sync);
                        self.breathe();
                    }
                }
                _ => {
                    self.deliver(sql);
                    data.into_iter().for_each(|message| self.say(message));
                    self.pause();
                }
            }
        }
        self.say_texts(&mut texts);
        if style == 2 {
            self.say(Message::Sync);
        }
    }

    fn say_texts(&mut self, texts: &mut Vec<Sql>) {
        if !texts.is_empty() {
            self.say(Message::Query(std::mem::take(texts)));
        }
    }
}
