//! Statements and replies, and the token that is in force after them.

use pgpalisade_authority::{Incarnation, Mark, Token};
use pgpalisade_policies::{Mode, Policy, TextEncoding, Who, classify};

use super::snapshots::SAVEPOINTS_MAX;
use super::*;
use crate::mark_cache::MarkCache;
use crate::{Fence, GrantMode, HeldToken};

struct Session {
    marks: Arc<MarkCache>,
    fence: SessionFence,
    accepted: Vec<Arc<HeldTokens>>,
    state: SessionState,
}

fn held(fence: &SessionFence, token: u64) -> Arc<HeldTokens> {
    Arc::new(HeldTokens::new(Box::new([HeldToken {
        mark: fence.fence().mark(fence.default_scope()),
        token: Token::new(token).unwrap(),
        timeline: 1,
        grant: GrantMode::Enforced,
    }])))
}

impl Session {
    /// A session that began with token 1 and has had all other tokens up to 9 accepted.
    fn new(text: ServerText) -> Self {
        let policy = Policy::parse("", &|_| Ok(())).unwrap();
        let marks = Arc::new(MarkCache::default());
        let fence = Fence::new(policy, Arc::clone(&marks), Mode::Enforce).unwrap();
        let fence = Arc::new(fence).for_session(&Who {
            user: "u",
            database: "d",
            application_name: None,
            client: None,
            common_name: None,
        });
        let accepted: Vec<_> = (1..10).map(|token| held(&fence, token)).collect();
        let mut state = SessionState::new(None);
        state.start_with(accepted.first().cloned(), text);
        Self {
            marks,
            fence,
            accepted,
            state,
        }
    }

    /// Applies a completed text, or a reply: `idle`, `open`, `failed` are ReadyForQuery, `error` is an error, `told` is
    /// the proxy's own SET.
    fn step(&mut self, step: &str) {
        match step {
            "idle" => self.state.on_ready(TransactionStatus::Idle),
            "open" => self.state.on_ready(TransactionStatus::InTransaction),
            "failed" => self.state.on_ready(TransactionStatus::Failed),
            "error" => self.state.on_error(),
            "told" => self.state.on_tokens_sent(),
            text => {
                let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
                for control in verdict.statements.iter().flat_map(|one| &one.controls) {
                    self.state.apply(&self.fence, &self.accepted, control);
                }
            }
        }
    }

    fn token(&self) -> u64 {
        let token = self.state.token().and_then(|held| held.tokens().first());
        token.map_or(0, |held| held.token.get())
    }
}

/// Checks the token in force after these steps. 0 stands for none.
#[track_caller]
fn check(steps: &[&str], expect: u64) {
    let mut session = Session::new(ServerText::Tokens);
    for step in steps {
        session.step(step);
    }
    assert_eq!(session.token(), expect, "{steps:?}");
}

const SET_5: &str = "SET fencing.token = 5";
const SET_6: &str = "SET fencing.token = 6";
const LOCAL_7: &str = "SET LOCAL fencing.token = 7";
const RESET: &str = "RESET fencing.token";
const SAVE: &str = "SAVEPOINT a";
const BACK: &str = "ROLLBACK TO a";
const RELEASE: &str = "RELEASE a";

#[test]
fn outside_of_a_block() {
    check(&[SET_5, "idle"], 5);
    check(&[LOCAL_7, "idle"], 1);
    for reset in [RESET, "RESET ALL", "DISCARD ALL"] {
        check(&[SET_5, "idle", reset, "idle"], 1);
    }
    check(&["SET fencing.token = ''", "idle"], 0);
    // DISCARD ALL is committed at once.
    check(&[SET_5, "idle", "DISCARD ALL", "error", "idle"], 1);
    // SET x; SELECT 1/0 in one string.
    check(&[SET_5, "error", "idle"], 1);
    check(&["error", "idle", SET_5, "idle"], 5);
}

#[test]
fn inside_a_block() {
    check(&[SET_5, "open", "COMMIT", "idle"], 5);
    check(&[SET_5, "open", "PREPARE TRANSACTION 'x'", "idle"], 5);
    check(&[SET_5, "open", "ROLLBACK", "idle"], 1);
    check(&[SET_5, "error", "failed"], 1);
    check(&[SET_5, "error", "failed", "ROLLBACK", "idle"], 1);
    check(&[LOCAL_7, "open"], 7);
    check(&[LOCAL_7, "open", "COMMIT", "idle"], 1);
    check(&[LOCAL_7, SET_5, "open"], 5);
    check(&[SET_5, LOCAL_7, "open", "COMMIT", "idle"], 5);
    check(&[SET_5, LOCAL_7, RESET, "open"], 1);
    // BEGIN; SET; COMMIT; SELECT 1/0 in one string: the commit stands.
    check(&[SET_5, "COMMIT", "error", "idle"], 5);
    for (chain, expect) in [("COMMIT AND CHAIN", 5), ("ROLLBACK AND CHAIN", 1)] {
        check(
            &[SET_5, chain, "open", SET_6, "open", "ROLLBACK", "idle"],
            expect,
        );
    }
}

#[test]
fn savepoints() {
    check(&[SAVE, SET_5, "open", BACK, "open"], 1);
    check(&[SET_5, SAVE, SET_6, BACK, "open", "COMMIT", "idle"], 5);
    check(&[SAVE, SET_5, RELEASE, "open", "COMMIT", "idle"], 5);
    check(&[SAVE, LOCAL_7, RELEASE, "open"], 7);
    check(&[SAVE, LOCAL_7, RELEASE, "open", "COMMIT", "idle"], 1);
    check(&[SAVE, SET_5, SAVE, SET_6, BACK, "open"], 5);
    // Of two savepoints of one name, the inner one goes first.
    check(&[SAVE, SET_5, SAVE, SET_6, RELEASE, BACK, "open"], 1);
    // A savepoint survives a ROLLBACK TO it.
    check(&[SAVE, SET_5, BACK, SET_6, BACK, "open"], 1);
    check(&[SET_5, "ROLLBACK TO unknown", "open"], 5);
    check(&[SET_5, SAVE, SET_6, "RELEASE unknown", BACK, "open"], 5);
}

#[test]
fn an_error_undoes_its_savepoint_and_a_failed_commit_all() {
    let failed = [SET_5, SAVE, SET_6, "error", "failed"];
    check(&failed, 5);
    for (end, expect) in [(BACK, 5), ("ROLLBACK", 1)] {
        check(&[&failed[..], &[end]].concat(), expect);
    }
    check(&[SET_5, SAVE, SET_6, "error", "idle"], 1);
}

/// Savepoints `{token}.{number}`, `times` for each of the tokens.
fn many(tokens: &[u64], times: usize) -> Session {
    let mut session = Session::new(ServerText::Tokens);
    for token in tokens {
        session.step(&format!("SET fencing.token = {token}"));
        for at in 0..times {
            session.step(&format!("SAVEPOINT \"{token}.{at}\""));
        }
    }
    session
}

#[test]
fn savepoints_that_are_forgotten_restore_what_they_all_do() {
    #[track_caller]
    fn back(session: &mut Session, name: &str, expect: u64) {
        session.step(&format!("ROLLBACK TO \"{name}\""));
        assert_eq!(session.token(), expect, "{name}");
    }
    let mut alike = many(&[5, 6], SAVEPOINTS_MAX);
    back(&mut alike, "6.0", 6);
    back(&mut alike, "5.7", 5);
    for step in ["SET fencing.token = 3", "SAVEPOINT later"] {
        alike.step(step);
    }
    back(&mut alike, "5.0", 5);
    // The token of the session, and the same one for the transaction.
    let mut both = many(&[5], 1);
    both.step("SET LOCAL fencing.token = 5");
    both.step(&["SAVEPOINT later"; SAVEPOINTS_MAX + 1].join(";"));
    back(&mut both, "5.0", 5);
    let mut unlike = many(&[5, 6, 7], SAVEPOINTS_MAX);
    back(&mut unlike, "7.0", 7);
    back(&mut unlike, "6.0", 0);
    // It is gone with the savepoint before it; an older one of its name may be meant.
    back(&mut unlike, "7.0", 0);
    let mut released = many(&[5, 6], SAVEPOINTS_MAX);
    released.step("RELEASE \"5.0\"");
    back(&mut released, "6.0", 5);
    released.step("ROLLBACK");
    assert_eq!(released.token(), 1);
}

/// Even one that is restored later.
#[test]
fn a_newer_acceptance_of_a_token_takes_its_place_everywhere() {
    let many = ["SAVEPOINT b"; 100].join(";");
    for (between, back) in [
        (SAVE, BACK),
        (SAVE, "ROLLBACK"),
        (SAVE, RESET),
        (&many, BACK),
    ] {
        let mut session = Session::new(ServerText::Tokens);
        for step in [SAVE, between, SET_5] {
            session.step(step);
        }
        let newer = held(&session.fence, 1);
        session.state.replace(&newer.value(), &newer);
        session.step(back);
        assert!(Arc::ptr_eq(session.state.token().unwrap(), &newer));
    }
}

#[test]
fn only_a_change_leaves_doubt() {
    let mut session = Session::new(ServerText::Tokens);
    for (step, expect) in [("BEGIN", false), (SET_5, true), ("COMMIT", false)] {
        session.step(step);
        assert_eq!(session.state.is_in_doubt(), expect, "{step}");
    }
}

/// A session that began with a take, and what the server has of it.
#[test]
fn the_server_s_text_is_undone_with_its_token() {
    for (steps, expect) in [
        (&[][..], ServerText::Other),
        (&["told", "idle"], ServerText::Tokens),
        (&["told", "error", "idle"], ServerText::Other),
        (&["told", "idle", "error", "idle"], ServerText::Tokens),
        (&["told", "idle", RESET], ServerText::Other),
        (&["told", "idle", SET_5], ServerText::Tokens),
        (&["BEGIN", "told", "ROLLBACK"], ServerText::Other),
        (&["BEGIN", "told", "COMMIT"], ServerText::Tokens),
        (&["BEGIN", SAVE, "told", BACK], ServerText::Other),
        (&["DISCARD ALL", "told", "error", "idle"], ServerText::Other),
        (
            &["told", "idle", "SET fencing.token = next"],
            ServerText::Other,
        ),
    ] {
        let mut session = Session::new(ServerText::Other);
        for step in steps {
            session.step(step);
        }
        assert_eq!(session.state.server_text(), expect, "{steps:?}");
    }
    let mut session = Session::new(ServerText::Tokens);
    for (taken, set, expect, text) in [
        (Some(5), "SET fencing.token = next", 5, ServerText::Other),
        (Some(5), SET_6, 6, ServerText::Tokens),
        (Some(0), "SET fencing.token = next", 0, ServerText::Other),
        (None, "SET fencing.token = next", 0, ServerText::Other),
    ] {
        let found = |token: usize| session.accepted.get(token.checked_sub(1)?).cloned();
        session.state.on_taken(taken.map(found));
        session.step(set);
        assert_eq!(
            (session.token(), session.state.server_text()),
            (expect, text)
        );
    }
}

#[test]
fn the_status_follows_each_statement() {
    use TransactionStatus::{Idle, InTransaction};
    let mut session = Session::new(ServerText::Tokens);
    for (step, expect) in [
        ("BEGIN", InTransaction),
        ("COMMIT AND CHAIN", InTransaction),
        ("SELECT 1", InTransaction),
        ("COMMIT", Idle),
        ("START TRANSACTION", InTransaction),
        ("failed", TransactionStatus::Failed),
        (BACK, InTransaction),
        ("ROLLBACK AND CHAIN", InTransaction),
        ("PREPARE TRANSACTION 'x'", Idle),
        ("BEGIN", InTransaction),
        ("ROLLBACK", Idle),
    ] {
        session.step(step);
        assert_eq!(session.state.status(), expect, "{step}");
    }
}

/// A repair may give the number of an older token to another leader, whose server connection the client then gets.
#[test]
fn tokens_from_before_a_repair_are_not_taken_up_again() {
    for is_repaired in [false, true] {
        let mut session = Session::new(ServerText::Tokens);
        session.state.leave_server();
        if is_repaired {
            let scope = session.fence.default_scope();
            let mark = Mark {
                incarnation: Incarnation::new(1),
                ..Mark::new(Token::new(1).unwrap(), 0, "the next leader".to_owned())
            };
            session.marks.note(scope, &mark);
        }
        let accepted = [held(&session.fence, 1)];
        session.state.enter_server(&accepted, ServerText::Tokens);
        assert_eq!(session.token(), u64::from(!is_repaired));
        assert_eq!(session.state.undeclared().is_some(), is_repaired);
    }
}
