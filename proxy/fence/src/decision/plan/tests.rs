//! Texts in sessions of every state: what is admitted, what must be declared first, and what is refused.

use pgpalisade_authority::{Mark, Token};
use pgpalisade_policies::scan::NeedsParse;
use pgpalisade_policies::{Effects, Mode, Policy, TextEncoding, Who, classify};

use super::*;
use crate::mark_cache::MarkCache;
use crate::rejection::RejectionKind;
use crate::{
    Admitted, Basis, Classified, CopyIn, Decision, Fence, GrantMode, HeldToken, NameSpace, Permit,
    PreparedNames, SCOPES_MAX, TokenValue,
};

use RejectionKind::{InvalidToken, NoToken, StaleToken};

/// Mark of the scope that writes need. Scope `billing` is at 7, and `fresh` has no mark.
const MARK: u64 = 5;

#[derive(Debug, PartialEq)]
enum Outcome {
    Admit(Basis),
    Declare(&'static str),
    Refuse(RejectionKind),
}

use Outcome::{Admit, Declare, Refuse};

const SAFE: TextEncoding = TextEncoding::Utf8;

const FREE: Outcome = Admit(Basis::NotRequired);
const TOKEN: Outcome = Admit(Basis::Token);
const FAILED: Outcome = Admit(Basis::FailedTransaction);

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
    wrote: Wrote,
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
        for (kind, name, text) in [
            (NameSpace::Portal, "pr", "SELECT 1"),
            (
                NameSpace::Portal,
                "pw",
                "INSERT INTO t VALUES (1) RETURNING a",
            ),
            (NameSpace::Statement, "fetches", "FETCH pr"),
            (
                NameSpace::Statement,
                "prepares",
                "PREPARE r AS DELETE FROM t",
            ),
            (NameSpace::Statement, "deallocates", "DEALLOCATE r"),
            (NameSpace::Statement, "executes", "EXECUTE r"),
            (NameSpace::Statement, "nests", "EXECUTE executes"),
            (NameSpace::Statement, "loops", "EXECUTE loops"),
            (NameSpace::Statement, "sets", "RESET ALL"),
            (NameSpace::Statement, "nests_set", "EXECUTE sets"),
            (NameSpace::Statement, "declares", "SET fencing.token = 6"),
            (NameSpace::Statement, "misspells", "SET fencing.tokn = 6"),
        ] {
            let classified = Classified {
                verdict: Arc::new(classify(text.as_bytes(), SAFE)),
                excerpt: None,
                scan: NeedsParse::No,
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
            wrote: Wrote::No,
            pipeline: Pipeline::Closed,
            guard: Guard::SURE,
        }
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
    fn inside(mut self, wrote: Wrote) -> Self {
        self.state.on_ready(TransactionStatus::InTransaction);
        self.wrote = wrote;
        self
    }

    /// Inside a block that has failed.
    fn failed(mut self) -> Self {
        self.state.on_ready(TransactionStatus::Failed);
        self
    }

    /// With an earlier request cycle in flight.
    fn unconfirmed(mut self) -> Self {
        self.is_confirmed = false;
        self
    }

    fn in_pipeline(mut self) -> Self {
        self.pipeline = Pipeline::Open;
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
    fn check(&self, text: &str, expect: Outcome) {
        let matches = match (self.plan(text), &expect) {
            (
                Ok(Admitted {
                    permit,
                    observed: None,
                }),
                Admit(basis),
            ) => permit.basis() == *basis,
            (Err(Unmet::Declare(found)), Declare(tokens)) => found == value(tokens),
            (Err(Unmet::Refuse(rejection)), Refuse(kind)) => rejection.kind == *kind,
            _ => false,
        };
        assert!(matches, "{text}: {:?}, not {expect:?}", self.plan(text));
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

/// Checks a text in five sessions: without a token, with the current one, and with a stale one; with a current one of
/// another scope only, and with a current one and a stale one of another scope.
#[track_caller]
fn check(text: &str, expect: [Outcome; 5]) {
    let tokens = ["", "5", "4", "billing=7", "default=5,billing=6"];
    for (token, expect) in tokens.into_iter().zip(expect) {
        println!("session with {token:?}");
        Session::new(token).check(text, expect);
    }
}

#[test]
fn reads_are_free_and_writes_need_the_current_token() {
    let writes = || {
        [
            Refuse(NoToken),
            TOKEN,
            Refuse(StaleToken),
            Refuse(NoToken),
            Refuse(StaleToken),
        ]
    };
    for text in [
        "INSERT INTO t VALUES (1)",
        "no SQL at all",
        "SELECT 1; INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (1); SELECT 1",
        "BEGIN; INSERT INTO t VALUES (1); COMMIT",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "EXECUTE w",
        "EXECUTE unknown",
        "SELECT 1; EXECUTE w",
    ] {
        check(text, writes());
    }
    for text in [
        "",
        "SELECT 1",
        "EXECUTE r",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "RESET fencing.token",
        "RESET ALL",
        "DISCARD ALL",
        "SET fencing.token = ''",
        "SET LOCAL fencing.token = 6",
    ] {
        check(text, [FREE, FREE, FREE, FREE, FREE]);
    }
}

/// A session that may write might have written, by a function.
#[test]
fn the_end_of_a_transaction_that_may_have_written_needs_its_token() {
    check("BEGIN; SELECT f(); COMMIT", [FREE, TOKEN, FREE, FREE, FREE]);
    check("BEGIN; SELECT 1; COMMIT", [FREE, FREE, FREE, FREE, FREE]);
    check("BEGIN; SELECT 1; ROLLBACK", [FREE, FREE, FREE, FREE, FREE]);
}

#[test]
fn a_new_token_is_declared_and_a_known_one_is_not() {
    let all = |make: fn() -> Outcome| [make(), make(), make(), make(), make()];
    for text in [
        "SET fencing.token = 6",
        "SELECT set_config('fencing.token', '6', false)",
        "SET fencing.token = 6; INSERT INTO t VALUES (1)",
        "BEGIN; SET LOCAL fencing.token = 6",
    ] {
        check(text, all(|| Declare("6")));
    }
    check(
        "SELECT f(); SET fencing.token = 6",
        [
            Refuse(NoToken),
            Refuse(InvalidToken),
            Refuse(StaleToken),
            Refuse(NoToken),
            Refuse(StaleToken),
        ],
    );
    for text in ["SET fencing.token = 4", "SET fencing.token = '5,billing=6'"] {
        check(text, all(|| Refuse(StaleToken)));
    }
    for text in [
        "SET fencing.token = 0",
        "SET fencing.token = '6,default=7'",
        "SET fencing.scope = 'not a scope'",
    ] {
        check(text, all(|| Refuse(InvalidToken)));
    }
    check("SET fencing.token = 'fresh=1'", all(|| Declare("fresh=1")));
    let same = "SET fencing.token = 5";
    check(
        same,
        [Declare("5"), FREE, Declare("5"), Declare("5"), Declare("5")],
    );
    // The token holds for the rest of the text.
    check(
        "SET fencing.token = 5; INSERT INTO t VALUES (1)",
        [
            Declare("5"),
            TOKEN,
            Declare("5"),
            Declare("5"),
            Declare("5"),
        ],
    );
}

/// The server's own text of the token is a take then, and what follows in the text would see it.
#[test]
fn what_brings_back_a_take_of_the_startup_packet() {
    let mut session = Session::set("5");
    let token = session.accepted.last().cloned();
    session.state.start_with(token, ServerText::Other);
    session.state.on_tokens_sent();
    for (text, expect) in [
        ("ROLLBACK; SELECT 1", Refuse(InvalidToken)),
        ("RESET fencing.token; SELECT 1", Refuse(InvalidToken)),
        ("SELECT 1; RESET fencing.token", FREE),
        ("COMMIT; SELECT 1", FREE),
    ] {
        session.check(text, expect);
    }
}

#[test]
fn accepted_tokens_are_in_force_from_their_set_on() {
    let session = || Session::new("").accepted("5");
    session().check("INSERT INTO t VALUES (1)", Refuse(NoToken));
    session().check("SET fencing.token = 5", FREE);
    session().check("SET fencing.token = 5; INSERT INTO t VALUES (1)", TOKEN);
    let early = "INSERT INTO t VALUES (1); SET fencing.token = 5";
    session().check(early, Refuse(NoToken));
    let over = "BEGIN; SET LOCAL fencing.token = 5; COMMIT; INSERT INTO t VALUES (1)";
    session().check(over, Refuse(NoToken));
    let undone = "BEGIN; SET fencing.token = 5; ROLLBACK; INSERT INTO t VALUES (1)";
    session().check(undone, Refuse(NoToken));
    let taken_back = "SET fencing.token = 5; RESET ALL; INSERT INTO t VALUES (1)";
    session().check(taken_back, Refuse(NoToken));
    // A number after a RESET is one of the default scope again.
    let scoped =
        "SET fencing.scope = billing; RESET fencing.scope; SELECT f(); SET fencing.token = 5";
    session().check(scoped, Refuse(NoToken));
    let elsewhere = "SET fencing.scope = billing; SELECT f(); SET fencing.token = 7";
    session().check(elsewhere, Declare("billing=7"));
    // A token that was accepted once may be stale now.
    let outdated = Session::new("").accepted("4");
    outdated.check("SET fencing.token = 4", Refuse(StaleToken));
    // A bare number is for the scope that the text has named before it.
    let scoped = "SET fencing.scope = 'billing'; SET fencing.token = 8";
    session().check(scoped, Declare("billing=8"));
    session().check(
        "SET fencing.scope = 'billing'; SET fencing.token = 5",
        Refuse(StaleToken),
    );
}

#[test]
fn set_local_alone_outside_of_a_transaction_declares_nothing() {
    let text = "SET LOCAL fencing.token = 6";
    Session::new("").check(text, FREE);
    Session::new("").inside(Wrote::No).check(text, Declare("6"));
    Session::new("").in_pipeline().check(text, Declare("6"));
    Session::new("").check("SET LOCAL fencing.token = 6; SELECT 1", Declare("6"));
}

#[test]
fn a_transaction_that_has_written_keeps_its_token() {
    let wrote = || Session::set("5").inside(Wrote::Yes).accepted("6");
    for text in [
        "SET fencing.token = 6",
        "SET fencing.token = 7",
        "SET LOCAL fencing.token = 6",
        "SET fencing.token = ''",
        "RESET fencing.token",
        "RESET ALL",
        "DISCARD ALL",
    ] {
        wrote().check(text, Refuse(InvalidToken));
        Session::set("5")
            .inside(Wrote::No)
            .accepted("6")
            .accepted("7")
            .check(text, FREE);
    }
    wrote().check("SET fencing.token = 5", FREE);
    wrote().check("COMMIT; SET fencing.token = 6", TOKEN);
    wrote().check("ROLLBACK; SET fencing.token = 6", FREE);
    wrote().check("PREPARE TRANSACTION 'x'; SET fencing.token = 6", TOKEN);
    wrote().check("ROLLBACK TO s; SET fencing.token = 6", Refuse(InvalidToken));
    // The token of the session's start is in force, so a RESET changes nothing.
    Session::new("5")
        .inside(Wrote::Yes)
        .check("RESET ALL", FREE);
    let text = "INSERT INTO t VALUES (1); SET fencing.token = 6";
    Session::set("5").check(text, Refuse(InvalidToken));
    Session::set("5")
        .accepted("6")
        .check(text, Refuse(InvalidToken));
}

#[test]
fn a_commit_is_a_write_where_something_was_written() {
    for text in ["COMMIT", "COMMIT AND CHAIN", "END"] {
        Session::new("5").inside(Wrote::Yes).check(text, TOKEN);
        Session::new("4")
            .inside(Wrote::Yes)
            .check(text, Refuse(StaleToken));
        Session::new("")
            .inside(Wrote::Yes)
            .check(text, Refuse(NoToken));
        Session::new("4").inside(Wrote::No).check(text, FREE);
    }
    Session::new("4").inside(Wrote::Yes).check("ROLLBACK", FREE);
    Session::new("4")
        .inside(Wrote::Yes)
        .check("ROLLBACK; COMMIT", FREE);
}

#[test]
fn in_a_failed_transaction_nothing_runs_until_it_has_ended() {
    for token in ["", "5", "4"] {
        let session = || Session::new(token).failed();
        for text in [
            "INSERT INTO t VALUES (1)",
            "SELECT 1",
            "SET fencing.token = 6",
            "BEGIN; INSERT INTO t VALUES (1)",
            "SAVEPOINT s; INSERT INTO t VALUES (1)",
            // The server stops at the first statement.
            "SELECT 1; ROLLBACK; INSERT INTO t VALUES (1)",
        ] {
            session().check(text, FAILED);
        }
        for text in ["ROLLBACK", "COMMIT", "ROLLBACK TO s"] {
            session().check(text, FREE);
        }
    }
    // PREPARE TRANSACTION rolls a failed transaction back, and the statements after it run.
    for end in [
        "ROLLBACK",
        "COMMIT",
        "ROLLBACK TO s",
        "ROLLBACK AND CHAIN",
        "PREPARE TRANSACTION 'x'",
    ] {
        let text = format!("{end}; INSERT INTO t VALUES (1)");
        Session::new("").failed().check(&text, Refuse(NoToken));
        Session::new("4").failed().check(&text, Refuse(StaleToken));
        Session::new("5").failed().check(&text, TOKEN);
    }
    // A COMMIT undoes what the transaction has set, even before its savepoint.
    let mut session = Session::new("").accepted("5").inside(Wrote::No);
    session.apply("SET fencing.token = 5; SAVEPOINT s");
    session.state.on_error();
    let text = "COMMIT; INSERT INTO t VALUES (1)";
    session.failed().check(text, Refuse(NoToken));
}

/// A statement at the end of a transaction may switch read-only mode off for the next one, which is not reported yet.
#[test]
fn behind_the_end_of_a_transaction_read_only_mode_is_in_doubt() {
    for text in [
        "COMMIT; SELECT f()",
        "ROLLBACK; BEGIN READ ONLY; SELECT f()",
        "COMMIT AND CHAIN; SELECT f()",
        "SELECT f(); COMMIT; SELECT f()",
        "BEGIN; SELECT f(); COMMIT; BEGIN; SELECT f(); COMMIT",
        "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT f(); COMMIT; SELECT f()",
        "FETCH c; ROLLBACK AND CHAIN; FETCH c",
        "EXECUTE r; COMMIT; EXECUTE r",
        "BEGIN; RESET ALL; COMMIT; SELECT f()",
        "RESET default_transaction_read_only; COMMIT; SELECT f()",
        "EXPLAIN ANALYZE SELECT f(); COMMIT; EXPLAIN ANALYZE SELECT f()",
    ] {
        Session::new("").check(text, Refuse(NoToken));
        Session::new("4").check(text, Refuse(StaleToken));
        assert!(
            matches!(
                Session::new("5").plan(text),
                Ok(Admitted { observed: None, .. })
            ),
            "{text}"
        );
    }
    for text in [
        "BEGIN; SELECT 1; COMMIT",
        "SELECT 1; COMMIT; SELECT 2",
        "ABORT; SELECT 1",
        "SELECT 1; COMMIT; SELECT set_config('fencing.token', '', false)",
        "SELECT 1; SELECT 2",
        "ROLLBACK; SET search_path = a; SHOW search_path; DISCARD ALL",
        "SAVEPOINT s; SELECT 1; RELEASE s; SELECT 2",
    ] {
        Session::new("").check(text, FREE);
    }
    let mut inside = Session::new("");
    inside.state.on_ready(TransactionStatus::InTransaction);
    inside.check("SELECT f()", FREE);
    inside.check("RELEASE s; SELECT f(); ROLLBACK TO s; SELECT f()", FREE);
    inside.check("COMMIT; SELECT f()", Refuse(NoToken));
    let mut pipeline = Session::new("");
    pipeline.guard = Guard::IN_DOUBT;
    pipeline.check("SELECT f()", Refuse(NoToken));
    // A constant computes nothing, so no write can hide in it.
    pipeline.check("SELECT 1", FREE);
    pipeline.check("COMMIT", FREE);
}

/// A function may write in a read, if the transaction is not read-only.
#[test]
fn what_a_read_may_have_written_counts() {
    for text in [
        "SELECT f(); SET fencing.token = 6",
        "BEGIN; SELECT f(); SET fencing.token = ''",
        "DECLARE c CURSOR WITH HOLD FOR SELECT f(); SET fencing.token = ''",
        "SAVEPOINT s; SELECT f(); RESET ALL",
    ] {
        let session = || Session::set("5").accepted("6");
        session().check(text, Refuse(InvalidToken));
        session()
            .inside(Wrote::No)
            .check(text, Refuse(InvalidToken));
    }
    for text in [
        "SET fencing.token = ''; SELECT f()",
        "RESET fencing.token; EXECUTE r",
    ] {
        Session::set("5").check(text, Refuse(NoToken));
        Session::new("").check(text, FREE);
    }
    Session::set("5").check("SET fencing.token = ''; SHOW search_path", FREE);
    // Nor does a token count before it is declared.
    for text in [
        "SELECT f(); SET fencing.token = 5",
        "BEGIN; TABLE v; SAVEPOINT s; SET LOCAL fencing.token = 5",
        "SET fencing.token = 5; RESET fencing.token; SELECT f(); SET fencing.token = 5",
    ] {
        Session::new("").accepted("5").check(text, Refuse(NoToken));
    }
    for text in [
        "SELECT 1; SET fencing.token = 5",
        "SHOW a.b; SET fencing.token = 5; SELECT f()",
    ] {
        Session::new("").accepted("5").check(text, FREE);
    }
    // If the token is stale by now, what was written under it is not committed.
    Session::new("4").check("SELECT f(); COMMIT", FREE);
    Session::new("4")
        .inside(Wrote::Yes)
        .check("COMMIT", Refuse(StaleToken));
}

#[test]
fn names_of_a_text_are_followed_through_it() {
    for (text, expect) in [
        (
            "DEALLOCATE r; PREPARE r AS INSERT INTO t VALUES (1); EXECUTE r",
            Refuse(NoToken),
        ),
        (
            "DEALLOCATE ALL; PREPARE r AS DELETE FROM t; EXECUTE r",
            Refuse(NoToken),
        ),
        ("DEALLOCATE r; EXECUTE r", Refuse(NoToken)),
        ("DEALLOCATE ALL; EXECUTE r", Refuse(NoToken)),
        ("DISCARD ALL; EXECUTE r", Refuse(NoToken)),
        ("DEALLOCATE w; PREPARE w AS SELECT 1; EXECUTE w", FREE),
        ("PREPARE n AS SELECT 1; EXECUTE n", FREE),
        ("PREPARE n AS SELECT 1; EXECUTE r", FREE),
        ("PREPARE \u{e9} AS SELECT 1; EXECUTE \u{e9}", FREE),
        ("PREPARE \u{e9} AS SELECT 1; EXECUTE r", Refuse(NoToken)),
        ("PREPARE n AS SELECT 1; EXECUTE \u{e9}", Refuse(NoToken)),
        (
            "PREPARE \u{e9} AS SELECT 1; PREPARE n AS SELECT 1; EXECUTE \u{e9}",
            Refuse(NoToken),
        ),
        (
            "PREPARE \u{e9} AS SELECT 1; PREPARE n AS SELECT 1; EXECUTE n",
            FREE,
        ),
        ("EXPLAIN ANALYZE EXECUTE w", Refuse(NoToken)),
        ("FETCH pr", FREE),
        ("FETCH pw", Refuse(NoToken)),
        ("MOVE ALL IN pw", Refuse(NoToken)),
        ("FETCH a_cursor_of_sql", FREE),
    ] {
        Session::new("").check(text, expect);
    }
    // Nothing counts as confirmed while an earlier cycle in flight may change it.
    for text in ["EXECUTE r", "FETCH pr", "FETCH a_cursor_of_sql"] {
        Session::new("").unconfirmed().check(text, Refuse(NoToken));
        Session::new("5")
            .unconfirmed()
            .check(text, Refuse(RejectionKind::Policy));
    }
    Session::new("5").check("DISCARD ALL; EXECUTE r", TOKEN);
    // Neither does read-only mode.
    Session::new("")
        .unconfirmed()
        .check("SELECT f()", Refuse(NoToken));
}

/// An unread text may begin with the ROLLBACK that a failed transaction runs.
#[test]
fn an_unread_text_in_a_failed_transaction() {
    for text in ["ROLLBACK; SELECT 'a\\'", "SELECT 'a\\'"] {
        Session::new("").failed().check(text, Refuse(NoToken));
        Session::new("4").failed().check(text, Refuse(StaleToken));
        Session::new("5").failed().check(text, TOKEN);
    }
    // The server rejects it before it looks at anything else.
    Session::new("")
        .failed()
        .check("this is no statement", FAILED);
}

/// A session that holds all tokens can run by name a statement that changes names: they are unknown afterwards.
#[test]
fn names_that_are_changed_by_a_name() {
    for (text, holder, others) in [
        ("EXECUTE fetches", TOKEN, Refuse(NoToken)),
        ("EXECUTE prepares", FREE, Refuse(RejectionKind::Policy)),
        ("EXECUTE deallocates", FREE, Refuse(RejectionKind::Policy)),
        (
            "EXECUTE deallocates; EXECUTE r",
            TOKEN,
            Refuse(RejectionKind::Policy),
        ),
        ("EXECUTE executes", FREE, FREE),
        ("EXECUTE nests", FREE, FREE),
        (
            "EXECUTE loops",
            Refuse(RejectionKind::Policy),
            Refuse(RejectionKind::Policy),
        ),
        (
            "EXECUTE sets",
            Refuse(RejectionKind::Policy),
            Refuse(RejectionKind::Policy),
        ),
        (
            "EXECUTE nests_set",
            Refuse(RejectionKind::Policy),
            Refuse(RejectionKind::Policy),
        ),
        (
            "EXECUTE declares",
            Refuse(InvalidToken),
            Refuse(InvalidToken),
        ),
        (
            "EXECUTE misspells",
            Refuse(InvalidToken),
            Refuse(InvalidToken),
        ),
    ] {
        Session::new("5").check(text, holder);
        Session::new("").check(text, others);
    }
    Session::set("5").check(
        "EXECUTE deallocates; SET fencing.token = ''; EXECUTE r",
        Refuse(InvalidToken),
    );
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
    let mut set = accepted().inside(Wrote::No);
    set.apply("SET fencing.token = 5");
    for (session, text, declares, settles, leave) in [
        (&accepted(), "SELECT f()", false, false, Leave::Read),
        (
            &accepted(),
            "SET fencing.token = 5",
            true,
            true,
            Leave::Read,
        ),
        (
            &accepted(),
            "SET fencing.token = 5; SELECT f()",
            true,
            true,
            Leave::ReadUnguarded,
        ),
        (&accepted(), "SHOW fencing.token", false, true, Leave::Read),
        (&accepted(), "COMMIT", false, false, Leave::Read),
        (&set, "COMMIT", false, true, Leave::Read),
        (&set, "RELEASE s; SELECT 1", false, true, Leave::Read),
        (&set, "SELECT f()", false, false, Leave::ReadUnguarded),
        (&set, "SELECT 1", false, false, Leave::Read),
        // A token that comes back lets the statements before it write nothing.
        (
            &Session::new("5"),
            "RESET ALL; TABLE t",
            false,
            true,
            Leave::ReadUnguarded,
        ),
    ] {
        let plan = plan(session, text);
        let found = (plan.declares, plan.settles, plan.leave);
        assert_eq!(found, (declares, settles, leave), "{text}");
    }
    let chained = plan(&accepted().inside(Wrote::No), "SELECT 1; COMMIT AND CHAIN");
    assert_eq!(chained.guard.in_doubt(), Some(Unguarded::TransactionEnded));
}

/// While something is in flight, such a text waits.
#[test]
fn what_a_text_depends_on() {
    let idle = Session::new("5");
    let mut set = Session::new("").accepted("5").inside(Wrote::No);
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
    session.check(&format!("SELECT 1; {take}"), Refuse(InvalidToken));
    session.check(take, Declare("billing=next,default=5"));
    session
        .state
        .on_taken(Some(session.accepted.last().cloned()));
    session.check(take, FREE);
    session.apply(take);
    assert_eq!(session.token(), "billing=8,default=5");
    // Nothing, if its refusal was only observed.
    session.state.on_taken(Some(None));
    session.check(take, FREE);
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
        assert_eq!(
            basis(fence.admit_copy_data(QUERY, CopyIn::Reading, held)),
            expect,
            "{token:?}"
        );
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
    for (tag, harmless) in [
        (b'P', true),
        (b'B', true),
        (b'D', true),
        (b'C', true),
        (b'H', true),
        (b'S', true),
        (b'f', true),
        (b'X', true),
        (b'Q', false),
        (b'E', false),
        (b'F', false),
        (b'd', false),
        (b'c', false),
        (b'p', false),
        (b'?', false),
    ] {
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
    #[track_caller]
    fn check(texts: &[&str], expect: &str) {
        let mut session = Session::new("5").accepted("6").accepted("billing=7");
        for text in texts {
            session.apply(text);
        }
        assert_eq!(session.token(), expect, "{texts:?}");
    }
    check(&[], "default=5");
    check(&["SET fencing.token = 6"], "default=6");
    check(&["SET fencing.token = 'billing=7'"], "billing=7");
    check(
        &["SET fencing.scope = 'billing'", "SET fencing.token = 7"],
        "billing=7",
    );
    check(&["SET fencing.token = ''"], "");
    // Not accepted for this session, or not a token: it holds none.
    check(&["SET fencing.token = 9"], "");
    check(&["SET fencing.token = 'x'"], "");
    for text in ["RESET fencing.token", "RESET ALL", "DISCARD ALL"] {
        check(&["SET fencing.token = 6", text], "default=5");
    }
    check(&["SET fencing.token = 6", "ROLLBACK"], "default=5");
    check(
        &["SET fencing.token = 6", "COMMIT", "ROLLBACK"],
        "default=6",
    );
    check(
        &[
            "SET fencing.token = 6",
            "PREPARE TRANSACTION 'x'",
            "ROLLBACK",
        ],
        "default=6",
    );
    check(&["SET LOCAL fencing.token = 6"], "default=6");
    check(&["SET LOCAL fencing.token = 6", "COMMIT"], "default=5");
    let savepoint = ["SAVEPOINT s", "SET fencing.token = 6", "ROLLBACK TO s"];
    check(&savepoint, "default=5");
    let released = [
        "SAVEPOINT s",
        "SET fencing.token = 6",
        "RELEASE s",
        "ROLLBACK TO s",
    ];
    check(&released, "default=6");
    check(
        &["SET fencing.token = 6", "DISCARD ALL", "ROLLBACK"],
        "default=5",
    );
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

    Session::under(fence.clone(), "s500=1").check("INSERT INTO s500.t VALUES (1)", TOKEN);
    Session::under(fence.clone(), "s500=1").check("INSERT INTO s501.t VALUES (1)", Refuse(NoToken));
    Session::under(fence.clone(), "s500=1")
        .check("INSERT INTO s1000.t VALUES (1)", Refuse(NoToken));

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
