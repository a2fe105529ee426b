//! Each transition: events, and the orders that follow.

use std::rc::Rc;
use std::time::Duration;

use super::world::{Places, Siblings};
use crate::{Access, Activity, BackendId, ClientId, Debt, Limits, Order, Pool, Refusal, Residue};

struct Script {
    pool: Pool<&'static str, u8, Places>,
    siblings: Rc<Siblings>,
    now: Duration,
    /// Backends by the order of their openings: `b1`, `b2`.
    opened: Vec<BackendId>,
    seed: u64,
}

pub(super) fn limits() -> Limits {
    Limits {
        login: 100,
        undecided: 100,
        wait: Duration::from_secs(8),
        idle: Duration::from_secs(60),
        lifetime: Duration::from_secs(1000),
    }
}

/// Limits with one that is changed.
fn limited(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = limits();
    change(&mut limits);
    limits
}

fn script(max: usize, limits: Limits) -> Script {
    reading(max, limits, usize::MAX)
}

/// Of the places, clients without tokens get this many.
fn reading(max: usize, limits: Limits, reads: usize) -> Script {
    let siblings: Rc<Siblings> = Rc::default();
    let budget = Places::new(Rc::clone(&siblings), max, 1, reads);
    Script {
        pool: Pool::new(limits, budget),
        siblings,
        now: Duration::ZERO,
        opened: Vec::new(),
        seed: 0,
    }
}

fn access(text: &str) -> Access<u8> {
    match text {
        "ro" => Access::ReadOnly,
        "new" => Access::New,
        token => Access::Tokens(token.strip_prefix('t').unwrap().parse().unwrap()),
    }
}

impl Script {
    fn backend(&self, name: &str) -> BackendId {
        let number: usize = name.strip_prefix('b').unwrap().parse().unwrap();
        self.opened[number - 1]
    }

    fn name(&self, id: BackendId) -> String {
        let at = self.opened.iter().position(|opened| *opened == id);
        format!("b{}", at.unwrap() + 1)
    }

    fn told(&mut self, order: Order<&'static str>) -> String {
        match order {
            Order::Lend {
                client,
                backend,
                residue,
            } => {
                let reset = if residue == Residue::Perhaps {
                    ", to be reset"
                } else {
                    ""
                };
                format!("{} gets {}{reset}", client.0, self.name(backend))
            }
            Order::Open { backend, login } => {
                self.opened.push(backend);
                format!("open {} {login}", self.name(backend))
            }
            Order::Reset(id) => format!("reset {}", self.name(id)),
            Order::Close(id) => format!("close {}", self.name(id)),
            Order::Refuse(client, Refusal::Timeout) => format!("{} too late", client.0),
            Order::Refuse(client, Refusal::OpenFailed) => format!("{} failed", client.0),
        }
    }

    fn event(&mut self, event: &'static str) -> String {
        self.event_of(&event.split(' ').collect::<Vec<_>>())
    }

    fn event_of(&mut self, words: &[&'static str]) -> String {
        let client = |text: &str| ClientId(text.parse().unwrap());
        let answer = |is_yes| if is_yes { "yes" } else { "no" };
        let mut told = Vec::new();
        match *words {
            ["ms", pause] => self.now += Duration::from_millis(pause.parse().unwrap()),
            ["tick"] => self.pool.tick(self.now),
            ["after", pause] => {
                self.now += Duration::from_millis(pause.parse().unwrap());
                self.pool.tick(self.now);
            }
            ["owes", "nothing"] => self.siblings.debt.set(None),
            ["owes", "idle"] => self.siblings.debt.set(Some(Debt::Idle)),
            ["owes", "any"] => self.siblings.debt.set(Some(Debt::Any)),
            ["claim"] => told.push(self.siblings.claim.get().to_owned()),
            ["reader"] => told.push(self.siblings.reader.get().to_owned()),
            [id, "wants", login, wanted] => {
                self.pool
                    .wanted(self.now, client(id), &login, access(wanted));
            }
            [id, "leaves"] => self.pool.left(client(id)),
            ["opened", id] => self.pool.opened(self.now, self.backend(id), self.seed),
            ["back", id, now] => self.back(id, now, Residue::Perhaps),
            ["back", id, now, "tidy"] => self.back(id, now, Residue::None),
            ["clean", id] => self.pool.reset_done(self.now, self.backend(id)),
            ["ended", id] => self.pool.ended(self.now, self.backend(id)),
            ["ended", ref ids @ ..] => {
                let ids: Vec<_> = ids.iter().map(|id| self.backend(id)).collect();
                self.pool.all_ended(self.now, ids);
            }
            ["back?"] => told.push(answer(self.pool.wants_back(self.now)).to_owned()),
            ["pin", id] => told.push(answer(self.pool.pin(self.backend(id))).to_owned()),
            _ => panic!("{words:?}"),
        }
        while let Some(order) = self.pool.next_order() {
            told.push(self.told(order));
        }
        told.join(", ")
    }

    fn back(&mut self, id: &str, now: &str, residue: Residue) {
        let id = self.backend(id);
        self.pool.given_back(self.now, id, access(now), residue);
    }

    /// Each line is an event, and its orders after `=>`. `1 has b1 a ro`: wants one, for which b1 is opened.
    fn run(&mut self, lines: &'static str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let [id, "has", backend, login, wanted] = *line.split(' ').collect::<Vec<_>>() {
                let client = ClientId(id.parse().unwrap());
                self.pool.wanted(self.now, client, &login, access(wanted));
                let opening = self.pool.next_order().map(|order| self.told(order));
                assert_eq!(opening, Some(format!("open {backend} {login}")), "{lines}");
                let lent = self.event_of(&["opened", backend]);
                assert_eq!(lent, format!("{id} gets {backend}"), "{line} in\n{lines}");
                continue;
            }
            let (event, orders) = line.split_once(" => ").unwrap_or((line, ""));
            let told = self.event(event.trim());
            assert_eq!(told, orders.trim(), "{event} in\n{lines}");
        }
    }
}

/// Tests that run scripts, with as many places as a script's first line says, or enough.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $($lines:literal),+;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $(run($lines);)+
        }
    )+};
}

fn run(lines: &'static str) {
    let lines = lines.trim_start();
    let first = lines.strip_prefix("places: ");
    match first.and_then(|lines| lines.split_once('\n')) {
        Some((max, lines)) => script(max.parse().unwrap(), limits()).run(lines),
        None => script(100, limits()).run(lines),
    }
}

scripts! {
    the_same_client_needs_no_reset: "
        1 has b1 a ro
        back b1 ro
        1 wants a ro => 1 gets b1
        back b1 ro
        2 wants a ro => 2 gets b1, to be reset
        back b1 ro
        1 wants a ro => 1 gets b1, to be reset";

    where_nothing_is_left_the_next_client_needs_no_reset: "
        1 has b1 a ro
        back b1 ro tidy
        2 wants a ro => 2 gets b1
        back b1 ro tidy
        2 leaves
        1 wants a ro => 1 gets b1
        back b1 ro
        2 wants a ro => 2 gets b1, to be reset
        3 wants a ro => open b2 a
        back b1 ro tidy => 3 gets b1";

    a_reset_starts_at_once_if_a_client_waits: "
        places: 1
        1 has b1 a ro
        2 wants a ro
        3 wants a ro
        back b1 ro => 2 gets b1, to be reset
        1 wants a ro
        back b1 ro => 3 gets b1, to be reset";

    the_best_is_the_own_one_then_a_clean_one_then_the_latest: "
        1 has b1 a ro
        2 has b2 a ro
        3 has b3 a ro
        back b1 ro
        back b2 ro
        back b3 ro
        4 wants a ro => 4 gets b3, to be reset
        back b3 ro
        4 leaves => reset b3
        clean b3
        1 wants a ro => 1 gets b1
        5 wants a ro => 5 gets b3
        6 wants a ro => 6 gets b2, to be reset";

    an_opening_goes_to_whoever_waits_by_then: "
        1 has b1 a ro
        2 wants a ro => open b2 a
        back b1 ro => 2 gets b1, to be reset
        opened b2
        3 wants a ro => 3 gets b2";

    /// One that may never end keeps its place. If it does end well, it serves like any other.
    beside_an_opening_that_takes_long_others_open: "
        1 wants a ro => open b1 a
        after 4900
        after 100 => open b2 a
        opened b2 => 1 gets b2
        2 wants a ro => open b3 a
        opened b1 => 2 gets b1",
    // Of a login that PostgreSQL is to decide on, one is tried at a time.
    "
        1 wants a new => open b1 a
        2 wants a new
        after 5000 => open b2 a
        ended b1 => 1 failed, 2 failed";

    keys_do_not_mix: "
        1 has b1 a ro
        back b1 ro
        1 wants b ro => open b2 b
        1 leaves => reset b1
        clean b1
        ended b2
        3 wants a t1 => 3 gets b1
        back b1 t1
        3 has b3 a ro
        back b3 ro
        3 wants a t2 => 3 gets b3
        4 wants a t1 => 4 gets b1, to be reset
        5 wants a t1 => open b4 a
        6 wants a t1 => open b5 a
        back b1 t1 => 5 gets b1, to be reset
        opened b4 => 6 gets b4";
}

#[test]
fn a_key_is_for_life() {
    for (wanted, becomes) in [("ro", "new"), ("t1", "ro"), ("t1", "new"), ("t1", "t2")] {
        let mut script = script(100, limits());
        assert_eq!(script.event_of(&["1", "wants", "a", wanted]), "open b1 a");
        assert_eq!(script.event("opened b1"), "1 gets b1");
        assert_eq!(script.event_of(&["back", "b1", wanted]), "");
        assert_eq!(script.event_of(&["1", "wants", "a", wanted]), "1 gets b1");
        let told = script.event_of(&["back", "b1", becomes]);
        assert_eq!(told, "close b1", "{wanted} {becomes}");
    }
}

scripts! {
    a_login_needs_a_new_backend: "
        places: 2
        1 has b1 a new
        back b1 ro tidy
        1 wants a ro => 1 gets b1
        back b1 ro tidy
        2 wants a new => open b2 a
        ended b2 => 2 failed
        ms 100
        2 has b3 a new
        back b3 ro tidy
        2 wants a new => close b1
        3 wants a ro => 3 gets b3
        2 leaves
        ended b1
        2 wants a new => open b4 a
        4 wants a ro
        2 leaves
        opened b4 => 4 gets b4
        back b4 ro tidy
        2 wants a new => close b4
        ended b4 => open b5 a
        4 wants a ro
        back b3 ro tidy => 4 gets b3
        ended b5 => 2 failed";

    an_own_key_is_on_its_way_back_while_others_come: "
        places: 2
        1 has b1 a t1
        2 has b2 a ro
        back b1 t1
        1 leaves => reset b1
        4 wants a t1
        back b2 ro
        clean b1 => 4 gets b1
        2 wants a ro => 2 gets b2
        back b1 t1
        4 leaves => reset b1
        back b2 ro
        5 wants a t1
        clean b1 => 5 gets b1";

    tokens_go_first_every_second_time: "
        places: 1
        1 has b1 a ro
        2 wants a ro
        3 wants a ro
        4 wants a t1
        5 wants a t1
        back b1 ro => 4 gets b1, to be reset
        back b1 ro => 2 gets b1, to be reset
        back b1 ro => 5 gets b1, to be reset
        back b1 ro => 3 gets b1, to be reset";
}

#[test]
fn an_idle_backend_of_another_key_makes_room() {
    run("places: 2
        1 has b1 a ro
        2 has b2 b ro
        ms 1
        back b2 ro
        ms 1
        back b1 ro
        3 wants c ro => close b2
        4 wants c ro
        ended b2 => open b3 c, close b1
        opened b3 => 3 gets b3
        ended b1 => open b4 c
        5 wants a ro
        back b3 ro => 4 gets b3, to be reset
        opened b4 => close b4
        ended b4 => open b5 a");
    let login = limited(|of| of.login = 1);
    script(100, login).run(
        "1 has b1 a ro
        2 has b2 b ro
        back b2 ro
        ms 1
        back b1 ro
        2 wants a new => close b1
        ended b1 => open b3 a",
    );
}

scripts! {
    /// Its server process may hang.
    one_that_does_not_close_holds_up_nobody: "
        places: 3
        1 has b1 a ro
        2 has b2 b ro
        3 has b3 b ro
        back b1 ro
        ms 1
        back b2 ro
        4 wants c ro => close b1
        5 wants d ro
        after 199
        after 1 => close b2
        ended b2 => open b4 c
        opened b4 => 4 gets b4
        back b3 ro => close b3
        ended b3 => open b5 d
        ended b1";

    /// Nor another pool, or a client that would make way.
    who_is_owed_a_place_does_not_wait_for_one_that_hangs: "
        places: 3
        1 has b1 a ro
        2 has b2 a ro
        3 has b3 a ro
        back b1 ro
        back b2 ro
        owes any
        tick => close b1
        tick
        after 200 => close b2
        tick
        after 200
        back b3 ro => close b3";

    it_does_not_while_its_own_clients_want_it: "
        places: 1
        1 has b1 a ro
        2 wants b ro
        3 wants a ro
        back b1 ro => 3 gets b1, to be reset
        back b1 ro => close b1";

    a_long_wait_makes_way: "
        places: 3
        1 has b1 a ro
        2 has b2 a ro
        3 has b3 b ro
        4 wants c ro
        5 wants a ro
        6 wants a ro
        after 999
        back b2 ro => 5 gets b2, to be reset
        pin b2 => yes
        after 1
        back b2 ro => 6 gets b2, to be reset
        2 wants a ro
        back b1 ro => close b1
        tick
        back b2 ro => 2 gets b2, to be reset
        ended b1 => open b4 c",
    // Of its own login, only one that could not serve it: and of another only if that has more.
    "
        places: 2
        1 has b1 a ro
        2 has b2 b ro
        3 wants a t1
        after 1000
        back b1 ro => 3 gets b1, to be reset
        1 wants a ro
        4 wants b ro
        pin b2 => yes
        after 1000
        5 wants a t1
        back b1 t1 => close b1
        ended b1 => open b3 a
        opened b3 => 1 gets b3
        back b2 ro => 4 gets b2, to be reset";

    each_tick_makes_way_once_and_of_tokens_last: "
        places: 3
        1 has b1 a ro
        2 has b2 a ro
        3 has b3 a t1
        back b3 t1
        3 wants a t1 => 3 gets b3
        4 wants c ro
        after 1000
        tick
        5 wants a ro
        6 wants a t1
        back b3 t1 => 6 gets b3, to be reset
        back b2 ro => close b2
        back b1 ro => close b1";
}

#[test]
fn a_pool_waits_for_places_of_others() {
    run("places: 1
        1 has b1 a ro
        2 wants a ro
        claim => waits
        after 999
        claim => waits
        after 1
        claim => urges
        back b1 ro => 2 gets b1, to be reset
        claim");
    // The login's own limit.
    let login = limited(|of| of.login = 1);
    script(100, login).run(
        "1 has b1 a ro
        2 wants a ro
        after 1000
        claim",
    );
}

scripts! {
    a_pool_makes_way_for_another: "
        places: 4
        1 has b1 a ro
        2 has b2 b ro
        3 has b3 a t1
        4 has b4 a ro
        back b2 ro
        owes idle
        tick => close b2
        tick
        ended b2
        tick
        back b4 ro
        4 wants a ro => 4 gets b4
        pin b4 => yes
        owes any
        tick
        owes nothing
        tick
        back b3 t1
        back b4 ro
        back b1 ro => close b1
        3 wants a ro => 3 gets b4, to be reset
        1 wants a t1 => 1 gets b3, to be reset
        5 wants a ro => open b5 a
        ended b1
        owes any
        tick
        claim
        back b4 ro => close b4";
}

#[test]
fn no_way_is_made_if_it_would_not_help() {
    // One is coming.
    run("places: 3
        1 has b1 a ro
        2 has b2 a ro
        3 wants b ro => open b3 b
        after 1000
        back b1 ro
        back b2 ro");
    let login = limited(|of| of.login = 1);
    script(100, login).run(
        "1 has b1 a ro
        pin b1 => yes
        2 has b2 b ro
        3 wants a new
        after 1000
        back b2 ro",
    );
    // Openings fail.
    run("places: 3
        1 has b1 a ro
        2 has b2 a ro
        3 wants b ro => open b3 b
        ended b3 => 3 failed
        ms 100
        3 wants b ro => open b4 b
        ended b4 => 3 failed
        ms 200
        3 wants b ro => open b5 b
        ended b5 => 3 failed
        ms 400
        3 wants b ro => open b6 b
        ended b6 => 3 failed
        ms 800
        3 wants b ro => open b7 b
        ended b7 => 3 failed
        3 wants b ro
        after 1000
        back b1 ro
        back b2 ro");
}

#[test]
fn few_open_at_once_for_logins_that_are_not_decided() {
    let few = limited(|of| of.undecided = 1);
    script(4, few).run(
        "1 wants a new => open b1 a
        2 wants b new
        3 wants c ro => open b2 c
        ended b1 => 1 failed, open b3 b
        4 wants a new
        ms 100
        opened b3 => 2 gets b3, open b4 a
        opened b4 => 4 gets b4
        opened b2 => 3 gets b2",
    );
}

#[test]
fn some_are_kept_for_tokens() {
    reading(3, limits(), 2).run(
        "1 has b1 a ro
        2 has b2 b ro
        3 wants a ro
        4 wants c new => open b3 c
        opened b3 => 4 gets b3
        back b3 ro
        5 wants a t1 => close b3
        ended b3 => open b4 a
        opened b4 => 5 gets b4
        back b4 t1 tidy
        after 1000
        reader => urges
        5 wants a t1 => 5 gets b4
        back b1 ro => 3 gets b1, to be reset
        tick
        reader",
    );
}

scripts! {
    waits_end: "
        places: 1
        1 has b1 a ro
        2 wants a ro
        ms 1
        3 wants b ro
        after 7999 => 2 too late
        after 1 => 3 too late";
}

#[test]
fn none_of_several_that_have_ended_is_lent() {
    reading(3, limits(), 1).run(
        "1 has b1 a ro
        2 wants a t1 => open b2 a
        2 leaves
        opened b2
        3 wants a ro
        ended b1 b2 => open b3 a",
    );
}

scripts! {
    a_failed_opening_is_told_if_there_is_no_other_backend: "
        1 wants a ro => open b1 a
        2 wants a t1 => open b2 a
        3 wants b ro => open b3 b
        ended b1 => 1 failed, 2 failed
        opened b2
        4 wants a ro => 4 gets b2
        5 wants a ro => open b4 a
        ended b4
        back b2 ro => 5 gets b2, to be reset";
}

#[test]
fn openings_pause_after_failures() {
    let mut script = script(100, limits());
    script.run(
        "1 wants a ro => open b1 a
        ended b1 => 1 failed
        1 wants a ro
        after 99
        after 1 => open b2 a
        ended b2 => 1 failed
        1 wants a ro
        after 199
        2 wants a ro
        after 1 => open b3 a, open b4 a
        ended b3 => 1 failed, 2 failed
        1 wants a ro
        ended b4 => 1 failed
        1 wants a ro
        after 399
        after 1 => open b5 a
        opened b5 => 1 gets b5
        2 wants a ro => open b6 a
        ended b6
        after 100 => open b7 a",
    );
    let mut script = self::script(100, limits());
    script.run("1 wants a ro => open b1 a\n ended b1 => 1 failed");
    for _ in 0..9 {
        script
            .pool
            .wanted(script.now, ClientId(1), &"a", Access::ReadOnly);
        assert_eq!(script.pool.next_order(), None);
        script.now += Duration::from_secs(5);
        script.pool.tick(script.now);
        let Some(Order::Open { backend, .. }) = script.pool.next_order() else {
            panic!("the pause is over 5 s")
        };
        script.pool.ended(script.now, backend);
        script.pool.next_order();
    }
}

scripts! {
    four_open_at_a_time: "
        1 wants a ro => open b1 a
        2 wants a ro => open b2 a
        3 wants a t1 => open b3 a
        4 wants a new => open b4 a
        5 wants a ro
        6 wants b ro => open b5 b
        opened b4 => open b6 a, 4 gets b4";
}

#[test]
fn idle_and_old_backends_close() {
    for (seed, lives) in [(0, 899), (512, 999), (1023, 1099)] {
        let mut script = script(100, limits());
        script.seed = seed;
        script.run(
            "1 has b1 a ro
            back b1 ro tidy
            after 59999
            1 wants a ro => 1 gets b1
            after 60000
            back b1 ro tidy
            1 wants a ro => 1 gets b1",
        );
        script.now = Duration::from_secs(lives);
        script.run("back b1 ro tidy\n 1 wants a ro => 1 gets b1");
        script.now = Duration::from_secs(lives + 1);
        script.run("back b1 ro => close b1");
    }
    let kept = limited(|of| of.idle = Duration::from_secs(5000));
    script(100, kept).run(
        "1 has b1 a ro
        back b1 ro tidy
        after 899999
        after 1 => close b1",
    );
    run("1 has b1 a ro
        back b1 ro
        after 60000 => close b1
        1 wants a ro => open b2 a
        ended b1");
}

scripts! {
    what_is_left_goes_if_its_client_stays_away: "
        1 has b1 a ro
        back b1 ro
        after 999
        1 wants a ro => 1 gets b1
        back b1 ro
        after 1000 => reset b1
        clean b1
        1 wants a ro => 1 gets b1
        back b1 ro tidy
        after 1000";

    pins_are_counted: "
        1 has b1 a ro
        2 has b2 a ro
        pin b1 => yes
        pin b1 => yes
        pin b2 => no
        back b1 ro
        pin b1 => no
        pin b2 => yes
        back b2 ro
        1 wants a ro => 1 gets b1
        pin b2 => no
        pin b1 => yes
        ended b1
        2 wants a ro => 2 gets b2
        pin b2 => yes";

    late_events_change_nothing: "
        1 wants a ro => open b1 a
        clean b1
        back b1 ro
        pin b1 => no
        opened b1 => 1 gets b1
        opened b1
        clean b1
        back b1 ro
        back b1 ro
        clean b1
        opened b1
        ended b1
        opened b1
        clean b1
        back b1 ro
        ended b1
        1 wants a ro => open b2 a";

    backends_are_wanted_back_for_waiters_and_when_they_are_to_close: "
        places: 1
        1 has b1 a ro
        back? => no
        2 wants a ro
        back? => yes
        2 leaves
        back? => no
        owes any
        tick
        back? => yes
        back b1 ro => close b1
        back? => no
        ended b1
        1 has b2 a ro
        ms 900000
        back? => yes
        pin b2 => yes
        back? => no";

    who_leaves_waits_no_more_and_leaves_nothing: "
        places: 2
        1 has b1 a ro
        1 leaves
        2 wants a ro => open b2 a
        3 wants a ro
        2 leaves
        opened b2 => 3 gets b2
        back b2 ro
        back b1 ro
        3 leaves => reset b2";
}

#[test]
fn people_see_backends_and_waits() {
    let mut script = script(3, limits());
    script.run(
        "1 has b1 a ro
        2 has b2 b ro
        pin b1 => yes
        back b2 ro
        ms 5
        3 wants a t1 => open b3 a
        4 wants c ro => close b2",
    );
    let seen = script.pool.backends();
    let seen = seen.map(|of| {
        (
            *of.login,
            of.activity,
            of.client,
            of.is_pinned,
            of.is_leaving,
        )
    });
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            ("a", Activity::Active, Some(ClientId(1)), true, false),
            ("b", Activity::Closing, None, false, true),
            ("a", Activity::Opening, None, false, false),
        ]
    );
    let waits = script.pool.waits().map(|wait| (wait.client, wait.since));
    let since = Duration::from_millis(5);
    let found = waits.collect::<Vec<_>>();
    assert_eq!(found, [(ClientId(3), since), (ClientId(4), since)]);
    assert_eq!(script.pool.waiting(), 2);
}
