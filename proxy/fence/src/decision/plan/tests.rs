//! Texts in sessions of every state: what is admitted, what must be declared first, and what is refused.

use pgpalisade_authority::{Mark, Token};
use pgpalisade_policies::{Effects, Mode, Policy, TextEncoding, Who, classify};

use super::*;
use crate::mark_cache::MarkCache;
use crate::rejection::RejectionKind;
use crate::wire::backend::TransactionStatus;
use crate::{
    Admitted, Basis, Classified, Decision, Fence, GrantMode, HeldToken, NameSpace, Permit,
    Pipeline, PreparedNames, PreparedText, SCOPES_MAX, TokenValue,
};

use RejectionKind::{NoToken, StaleToken};

/// Mark of the scope that writes need. Scope `billing` is at 7, and `fresh` has no mark.
const MARK: u64 = 5;

const SAFE: TextEncoding = TextEncoding::Utf8;

/// Type and length of a Query; any would do.
const QUERY: Header = Header {
    tag: b'Q',
    body_len: 9,
};

/// Names of statements and portals, and what they stand for.
#[derive(Default)]
struct Names(Vec<(NameSpace, &'static str, PreparedText)>);

impl PreparedNames for Names {
    fn find(&self, name: Name<'_>) -> Option<&PreparedText> {
        let text = std::str::from_utf8(name.bytes()).ok()?;
        let mut known = self.0.iter();
        let found = known.find(|(kind, known, _)| *kind == name.kind() && *known == text);
        found.map(|(.., meaning)| meaning)
    }
}

/// A session, idle and without a transaction unless said otherwise.
struct Session {
    fence: SessionFence,
    state: SessionState,
    accepted: Vec<Arc<HeldTokens>>,
    names: Names,
    is_confirmed: bool,
    wrote: bool,
    pipeline: Pipeline,
    guard: Guard,
}

fn fence() -> SessionFence {
    let policy = "[defaults]\nallow = [\"prepare-transaction\"]\n";
    fence_of(Policy::parse(policy, &|_| Ok(())).unwrap(), &Arc::default())
}

fn fence_of(policy: Policy, marks: &Arc<MarkCache>) -> SessionFence {
    for (scope, mark) in [("default", MARK), ("billing", 7)] {
        marks.mark(&scope.parse().unwrap()).raise(&Mark::new(
            Token::new(mark).unwrap(),
            1,
            "tests".to_owned(),
        ));
    }
    let fence = Fence::new(policy, Arc::clone(marks), Mode::Enforce).unwrap();
    Arc::new(fence).for_session(&Who {
        user: "u",
        database: "d",
        application_name: None,
        client: None,
        common_name: None,
    })
}

fn value(text: &str) -> TokenValue {
    TokenValue::parse(text, &Scope::default()).unwrap().unwrap()
}

fn held(fence: &SessionFence, text: &str) -> Arc<HeldTokens> {
    let value = value(text);
    let tokens = value.claims().iter().map(|(scope, claim)| HeldToken {
        mark: fence.fence().mark(scope),
        token: claim.token().unwrap(),
        timeline: 1,
        grant: GrantMode::Enforced,
    });
    Arc::new(HeldTokens::new(tokens.collect()))
}

impl Session {
    /// A session started with a token, or without one if the text is empty.
    fn new(token: &str) -> Self {
        Self::under(fence(), token)
    }

    fn under(fence: SessionFence, token: &str) -> Self {
        let token = (!token.is_empty()).then(|| held(&fence, token));
        let mut names = Names::default();
        for (name, effects) in [("r", Effects::none()), ("w", Effects::unknown(None))] {
            let meaning = PreparedText::Sql(Arc::new(effects));
            names.0.push((NameSpace::Statement, name, meaning));
        }
        for row in [
            "portal pr: SELECT 1",
            "portal pw: INSERT INTO t VALUES (1) RETURNING a",
            "fetches: FETCH pr",
            "prepares: PREPARE r AS DELETE FROM t",
            "deallocates: DEALLOCATE r",
            "executes: EXECUTE r",
            "nests: EXECUTE executes",
            "loops: EXECUTE loops",
            "sets: RESET ALL",
            "nests_set: EXECUTE sets",
            "declares: SET fencing.token = 6",
            "misspells: SET fencing.tokn = 6",
        ] {
            let (name, text) = row.split_once(": ").unwrap();
            let (kind, name) = match name.strip_prefix("portal ") {
                Some(name) => (NameSpace::Portal, name),
                None => (NameSpace::Statement, name),
            };
            let classified = Classified {
                verdict: Arc::new(classify(text.as_bytes(), SAFE)),
                excerpt: None,
                needs_parse: false,
                source: None,
            };
            let meaning = PreparedText::Classified(Arc::new(classified));
            names.0.push((kind, name, meaning));
        }
        let mut state = SessionState::new(None);
        state.start_with(token.clone(), ServerText::Tokens);
        Self {
            fence,
            state,
            accepted: token.into_iter().collect(),
            names,
            is_confirmed: true,
            wrote: false,
            pipeline: Pipeline::Closed,
            guard: Guard::SURE,
        }
    }

    /// A session as `texts.txt` describes it.
    fn of(description: &str) -> Self {
        let mut words = description.split(' ');
        let token = words.next().unwrap();
        let mut session = match token.strip_prefix("set:") {
            Some(set) => Self::set(set),
            None if token == "none" => Self::new(""),
            None => Self::new(token),
        };
        for word in words {
            session = match word {
                "inside" => session.inside(),
                "wrote" => Self {
                    wrote: true,
                    ..session.inside()
                },
                "failed" => session.failed(),
                "unconfirmed" => Self {
                    is_confirmed: false,
                    ..session
                },
                "pipeline" => Self {
                    pipeline: Pipeline::Open,
                    ..session
                },
                "doubt" => Self {
                    guard: Guard::IN_DOUBT,
                    ..session
                },
                accepted => session.accepted(accepted.strip_prefix('+').unwrap()),
            };
        }
        session
    }

    /// A session started without a token and given one by a SET since.
    fn set(token: &str) -> Self {
        let mut session = Self::new("").accepted(token);
        session.apply(&format!("SET fencing.token = '{token}'; COMMIT"));
        session
    }

    /// With these tokens accepted, too.
    fn accepted(mut self, token: &str) -> Self {
        self.accepted.push(held(&self.fence, token));
        self
    }

    /// Inside a transaction block.
    fn inside(mut self) -> Self {
        self.state.on_ready(TransactionStatus::InTransaction);
        self
    }

    /// Inside a block that has failed.
    fn failed(mut self) -> Self {
        self.state.on_ready(TransactionStatus::Failed);
        self
    }

    fn situation(&self) -> Situation<'_> {
        let names: &dyn PreparedNames = &self.names;
        Situation {
            fence: &self.fence,
            state: &self.state,
            accepted: &self.accepted,
            wrote: self.wrote,
            pipeline: self.pipeline,
            guard: self.guard,
            names: self.is_confirmed.then_some(names),
        }
    }

    fn plan(&self, text: &str) -> Decision {
        let verdict = classify(text.as_bytes(), SAFE);
        let planned = self.situation().plan(QUERY, &verdict);
        planned.map(|(admitted, _)| admitted)
    }

    #[track_caller]
    fn check(&self, text: &str, expect: &str) {
        let found = match self.plan(text) {
            Ok(Admitted {
                permit,
                observed: None,
            }) => match permit.basis() {
                Basis::NotRequired => "free".to_owned(),
                Basis::Token => "token".to_owned(),
                Basis::FailedTransaction => "failed".to_owned(),
                Basis::Exempt => "exempt".to_owned(),
            },
            Err(Unmet::Declare(value)) => {
                let claims = value.claims().iter();
                let claims = claims.map(|(scope, claim)| format!("{scope}={claim}"));
                format!("declare:{}", claims.collect::<Vec<_>>().join(","))
            }
            Err(Unmet::Refuse(rejection)) => format!("{:?}", rejection.kind),
            observed => format!("{observed:?}"),
        };
        assert_eq!(found, expect, "{text}");
    }

    fn apply(&mut self, text: &str) {
        let verdict = classify(text.as_bytes(), SAFE);
        for control in verdict.statements.iter().flat_map(|one| &one.controls) {
            self.state.apply(&self.fence, &self.accepted, control);
        }
    }

    fn token(&self) -> String {
        let token = self.state.token();
        token.map(|token| token.to_string()).unwrap_or_default()
    }
}

/// `texts.txt`.
#[test]
fn each_text_has_its_outcome_in_each_session() {
    let mut sessions: Vec<&str> = Vec::new();
    let mut count = 0;
    for line in include_str!("tests/texts.txt").lines() {
        if let Some(line) = line.strip_prefix('[') {
            sessions = line.trim_end_matches(']').split(", ").collect();
        } else if let Some((text, outcomes)) = line.split_once(" => ") {
            let outcomes: Vec<&str> = outcomes.split(' ').collect();
            assert!([1, sessions.len()].contains(&outcomes.len()), "{line}");
            for (session, outcome) in sessions.iter().zip(outcomes.iter().cycle()) {
                println!("session {session}");
                Session::of(session).check(text, outcome);
                count += 1;
            }
        }
    }
    assert_eq!(count, 447, "the table is read wrongly");
}

/// The server's own text of the token is a take then, and what follows in the text would see it.
#[test]
fn what_brings_back_a_take_of_the_startup_packet() {
    let mut session = Session::set("5");
    let token = session.accepted.last().cloned();
    session.state.start_with(token, ServerText::Other);
    session.state.on_tokens_sent();
    for (text, expect) in [
        ("ROLLBACK; SELECT 1", "InvalidToken"),
        ("RESET fencing.token; SELECT 1", "InvalidToken"),
        ("SELECT 1; RESET fencing.token", "free"),
        ("COMMIT; SELECT 1", "free"),
    ] {
        session.check(text, expect);
    }
}

/// It even undoes what the transaction has set before its savepoint.
#[test]
fn a_commit_of_a_failed_transaction() {
    let mut session = Session::new("").accepted("5").inside();
    session.apply("SET fencing.token = 5; SAVEPOINT s");
    session.state.on_error();
    let text = "COMMIT; INSERT INTO t VALUES (1)";
    session.failed().check(text, "NoToken");
}

/// What a text that passes means for the guard, the ledger and the messages after it.
#[test]
fn the_plan_of_a_text() {
    let plan = |session: &Session, text: &str| {
        let verdict = classify(text.as_bytes(), SAFE);
        let planned = session.situation().plan(QUERY, &verdict);
        planned
            .unwrap_or_else(|unmet| panic!("{text}: {unmet:?}"))
            .1
    };
    // Without a token but with 5 accepted; and with 5 since a SET that is not committed.
    let accepted = || Session::new("").accepted("5");
    let mut set = accepted().inside();
    set.apply("SET fencing.token = 5");
    let (of_set, back) = ("SET fencing.token = 5", "RESET fencing.token; SELECT f()");
    let mut laid_down = Session::new("5");
    laid_down.apply("SET fencing.token = ''");
    let late = "SELECT f(); RESET fencing.token; SELECT f()";
    let hides = "SET fencing.token = 5; SELECT f()";
    for (session, text, declares, settles, leave) in [
        (&accepted(), "SELECT f()", false, false, Leave::Read),
        (&accepted(), of_set, true, true, Leave::Read),
        (&accepted(), hides, true, true, Leave::ReadUnguarded),
        (&accepted(), "SHOW fencing.token", false, true, Leave::Read),
        (&accepted(), "COMMIT", false, false, Leave::Read),
        (&set, "COMMIT", false, true, Leave::Read),
        (&set, "RELEASE s; SELECT 1", false, true, Leave::Read),
        (&set, "SELECT f()", false, false, Leave::ReadUnguarded),
        (&set, "SELECT 1", false, false, Leave::Read),
        (&laid_down, back, true, true, Leave::ReadUnguarded),
        // A token that comes back lets the statements before it write nothing.
        (&laid_down, late, false, true, Leave::ReadUnguarded),
    ] {
        let plan = plan(session, text);
        let found = (plan.declares, plan.settles, plan.leave);
        assert_eq!(found, (declares, settles, leave), "{text}");
    }
    let chained = plan(&accepted().inside(), "SELECT 1; COMMIT AND CHAIN");
    assert_eq!(chained.guard.in_doubt(), Some(Unguarded::TransactionEnded));
}

/// While something is in flight, such a text waits.
#[test]
fn what_a_text_depends_on() {
    let idle = Session::new("5");
    let mut set = Session::new("").accepted("5").inside();
    set.apply("SET fencing.token = 5");
    let failed = Session::new("5").failed();
    for (session, text, depends) in [
        (&idle, "INSERT INTO t VALUES (1)", false),
        (&idle, "COMMIT; SELECT 1", false),
        (&idle, "SET fencing.token = 6", true),
        (&idle, "SHOW fencing.token", true),
        (&idle, "SELECT 1; DISCARD ALL", true),
        (&idle, "EXECUTE r", true),
        (&idle, "FETCH pr", true),
        (&set, "COMMIT", false),
        (&set, "COMMIT; SELECT 1", true),
        (&set, "SELECT 1; SELECT 2", false),
        (&failed, "SELECT 1", true),
    ] {
        let verdict = classify(text.as_bytes(), SAFE);
        let found = session.state.needs_certainty_for(&verdict);
        assert_eq!(found, depends, "{text}");
    }
}

/// Only the scope of the session shows whether a text is a take.
#[test]
fn a_take_counts_by_what_it_has_obtained() {
    let mut session = Session::new("").accepted("billing=8,default=5");
    session.apply("SET fencing.scope = billing");
    let take = "SET fencing.token = 'next,default=5'";
    session.check(&format!("SELECT 1; {take}"), "InvalidToken");
    session.check(take, "declare:billing=next,default=5");
    session
        .state
        .on_taken(Some(session.accepted.last().cloned()));
    session.check(take, "free");
    session.apply(take);
    assert_eq!(session.token(), "billing=8,default=5");
    // Nothing, if its refusal was only observed.
    session.state.on_taken(Some(None));
    session.check(take, "free");
    session.apply(take);
    assert_eq!(session.token(), "");
}

#[test]
fn what_runs_by_a_name_may_change_names() {
    for (name, expect) in [
        ("r", false),
        ("fetches", false),
        ("prepares", true),
        ("deallocates", true),
        ("executes", true),
    ] {
        let text = format!("EXECUTE {name}");
        let verdict = classify(text.as_bytes(), SAFE);
        let session = Session::new("5");
        let (_, plan) = session.situation().plan(QUERY, &verdict).unwrap();
        assert_eq!(plan.changes_names, expect, "{text}");
    }
}

#[test]
fn the_fast_path_asks_for_every_token() {
    for (token, expect) in [
        ("", None),
        ("5", Some(Basis::Token)),
        ("6", Some(Basis::Token)),
        ("4", None),
        ("billing=7", None),
        ("fresh=1", None),
        ("default=5,billing=7", Some(Basis::Token)),
        ("default=5,billing=6", None),
        ("default=4,billing=7", None),
    ] {
        let session = Session::new(token);
        let permit = session
            .fence
            .admit_text(QUERY, b"INSERT", session.state.token());
        assert_eq!(permit.map(|permit| permit.basis()), expect, "{token:?}");
    }
}

#[test]
fn data_of_a_copy_and_classes_are_judged_as_writes_are() {
    for (token, expect) in [
        ("", Err(NoToken)),
        ("5", Ok(Basis::Token)),
        ("4", Err(StaleToken)),
        ("billing=7", Err(NoToken)),
        ("default=5,billing=6", Err(StaleToken)),
    ] {
        let Session { fence, state, .. } = Session::new(token);
        let basis = |decided: Result<Permit, Box<Rejection>>| {
            decided
                .map(|permit| permit.basis())
                .map_err(|rejection| rejection.kind)
        };
        let held = state.token();
        let found = basis(fence.admit_copy_data(QUERY, held));
        assert_eq!(found, expect, "{token:?}");
        let admission = |effects: &Effects| {
            basis(match fence.admit_effects(QUERY, effects, held) {
                Ok(Admitted {
                    permit,
                    observed: None,
                }) => Ok(permit),
                Err(Unmet::Refuse(rejection)) => Err(rejection),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(admission(&Effects::unknown(None)), expect, "{token:?}");
        assert_eq!(admission(&Effects::none()), Ok(Basis::NotRequired));
    }
}

#[test]
fn messages_that_write_are_not_harmless() {
    for tag in *b"PBDCHSfXQEFdcp?" {
        let harmless = b"PBDCHSfX".contains(&tag);
        let message = Header { tag, body_len: 4 };
        let permit = fence().admit_harmless(message);
        let expect = harmless.then_some(Basis::NotRequired);
        assert_eq!(permit.map(|permit| permit.basis()), expect, "{tag}");
    }
}

/// A message is admitted as malformed only if it is.
#[test]
fn only_a_malformed_query_or_execute_passes_as_one() {
    for (tag, body, passes) in [
        (b'Q', &b"INSERT INTO t VALUES (1)\0"[..], false),
        (b'Q', b"INSERT INTO t VALUES (1)", true),
        (b'E', b"p\0\0\0\0\0", false),
        (b'E', b"p", true),
        (b'B', b"p", true),
        (b'd', b"", false),
    ] {
        let body_len = body.len();
        let permit = fence().admit_malformed(Header { tag, body_len }, body);
        assert_eq!(permit.is_some(), passes, "{tag} {body:?}");
        let longer = Header {
            tag,
            body_len: body_len + 1,
        };
        let cut = fence().admit_malformed(longer, body);
        assert_eq!(cut.is_some(), passes && tag == b'B', "{tag} {body:?}");
    }
}

#[test]
fn what_a_statement_has_done_is_applied() {
    for row in [
        " => default=5",
        "SET fencing.token = 6 => default=6",
        "SET fencing.token = 'billing=7' => billing=7",
        "SET fencing.scope = 'billing'; SET fencing.token = 7 => billing=7",
        "SET fencing.token = '' => ",
        // Not accepted for this session, or not a token: it holds none.
        "SET fencing.token = 9 => ",
        "SET fencing.token = 'x' => ",
        "SET fencing.token = 6; RESET fencing.token => default=5",
        "SET fencing.token = 6; RESET ALL => default=5",
        "SET fencing.token = 6; DISCARD ALL => default=5",
        "SET fencing.token = 6; ROLLBACK => default=5",
        "SET fencing.token = 6; COMMIT; ROLLBACK => default=6",
        "SET fencing.token = 6; PREPARE TRANSACTION 'x'; ROLLBACK => default=6",
        "SET LOCAL fencing.token = 6 => default=6",
        "SET LOCAL fencing.token = 6; COMMIT => default=5",
        "SAVEPOINT s; SET fencing.token = 6; ROLLBACK TO s => default=5",
        "SAVEPOINT s; SET fencing.token = 6; RELEASE s; ROLLBACK TO s => default=6",
        "SET fencing.token = 6; DISCARD ALL; ROLLBACK => default=5",
    ] {
        let (texts, expect) = row.split_once(" => ").unwrap();
        let mut session = Session::new("5").accepted("6").accepted("billing=7");
        for text in texts.split("; ") {
            session.apply(text);
        }
        assert_eq!(session.token(), expect, "{row}");
    }
}

/// A session has few tokens, and a policy may have very many scopes, in which they are looked up.
#[test]
fn the_token_of_any_scope_with_tables_opens_the_session() {
    const SCOPES: usize = 1_000;
    let scopes = (0..SCOPES).map(|n| format!("[scope.s{n}]\ntables = \"s{n}.t\"\n"));
    let text = "[scope.bare]\nmax_step = 5\n".to_owned() + &scopes.collect::<String>();
    let marks = Arc::default();
    let fence = fence_of(Policy::parse(&text, &|_| Ok(())).unwrap(), &marks);
    // Named by no policy, so its number is above all of them.
    marks.mark(&"later".parse().unwrap());
    for (token, opens) in [
        ("s0=1", true),
        ("s500=1", true),
        ("s999=1", true),
        ("default=5", true),
        ("default=4", false),
        ("later=1,s7=1", true),
        ("bare=1", false),
        ("later=1", false),
        ("billing=7", false),
    ] {
        let session = Session::under(fence.clone(), token);
        let held = session.state.token();
        assert_eq!(session.fence.may_write(held), opens, "{token}");
        // A token that is declared need not be current.
        let declared = session.fence.opens(&value(token));
        assert_eq!(declared, opens || token == "default=4", "{token}");
    }
    assert!(!fence.may_write(None));

    Session::under(fence.clone(), "s500=1").check("INSERT INTO s500.t VALUES (1)", "token");
    Session::under(fence.clone(), "s500=1").check("INSERT INTO s501.t VALUES (1)", "NoToken");
    Session::under(fence.clone(), "s500=1").check("INSERT INTO s1000.t VALUES (1)", "NoToken");

    // A repair of the scope retires the mark that the session's token was bound with.
    let session = Session::under(fence.clone(), "s3=1");
    let mark = marks.mark(&"s3".parse().unwrap());
    let repaired = Mark {
        incarnation: mark.incarnation().next().unwrap(),
        ..Mark::new(Token::new(1).unwrap(), 1, "tests".to_owned())
    };
    marks.note(mark.scope(), &repaired);
    assert!(!fence.may_write(session.state.token()));
    assert!(fence.may_write(Session::under(fence.clone(), "s3=1").state.token()));
}

/// The refusal of any text is short, and made once.
#[test]
fn more_scopes_than_a_session_can_hold_are_not_listed() {
    let fence = |begin: &str, scopes: usize, end: &str| {
        let scope = |n| format!("[scope.s{n}]\ntables = \"s{n}.t\"\n");
        let scopes = (0..scopes).map(scope).collect::<String>();
        let text = format!("{begin}{scopes}{end}");
        fence_of(Policy::parse(&text, &|_| Ok(())).unwrap(), &Arc::default())
    };
    let refusal = |fence| match Session::under(fence, "").plan("CALL p()") {
        Err(Unmet::Refuse(rejection)) => rejection,
        other => panic!("{other:?}"),
    };
    // These and the scope of the session.
    let few = refusal(fence("", SCOPES_MAX - 1, ""));
    assert!(
        few.detail.contains("\"s62\"") && few.hint.contains("s62=<number>"),
        "{few:?}"
    );
    for scopes in [SCOPES_MAX, 5_000] {
        let many = refusal(fence("", scopes, ""));
        assert!(many.detail.contains("more scopes than the 64"), "{many:?}");
        assert!(many.hint.contains("unknown_tables"), "{many:?}");
        assert!(!many.detail.contains("\"s62\""), "{many:?}");
    }
    // An enforced scope comes after many that are observed.
    let last = "[scope.last]\ntables = \"last.t\"\nmode = \"enforce\"\n";
    let rejection = refusal(fence("[defaults]\nmode = \"observe\"\n", 5_000, last));
    assert_eq!(rejection.scope, Some("last".parse().unwrap()));
}

#[test]
fn a_mark_that_rises_while_a_text_is_judged_is_told_as_what_it_is() {
    let verdict = classify(b"BEGIN; INSERT INTO t VALUES (1); COMMIT", SAFE);
    for _ in 0..2_000 {
        let session = Session::new("5");
        let mark = session.fence.fence().mark(&Scope::default());
        let higher = Mark::new(Token::new(6).unwrap(), 2, "tests".to_owned());
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| mark.raise(&higher));
            loop {
                if let Err(unmet) = session.situation().plan(QUERY, &verdict) {
                    break unmet;
                }
            }
        });
        let is_stale = matches!(&refused, Unmet::Refuse(why) if why.kind == StaleToken);
        assert!(is_stale, "{refused:?}");
    }
}
