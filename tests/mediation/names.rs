//! Names that PostgreSQL interprets differently: truncated to 63 bytes (C1), redefined (C5), or not compared by their
//! bytes (N4).

use pgpalisade_judges::mediation::conversation::{Name, Session, Target};

use super::script::{Script, Worth, check, conversations, grouped, held, pairs, payloads};

/// Pairs of names that PostgreSQL considers equal.
fn cut_names() -> Vec<(String, String)> {
    let stem = "n".repeat(63);
    let longer = |tail: &str| format!("{stem}{tail}");
    let umlaut = format!("{}\u{e4}", "n".repeat(62));
    let accent = format!("{}\u{e0}", "n".repeat(62));
    vec![
        (stem.clone(), longer("a")),
        (longer("a"), stem.clone()),
        (longer("a"), longer("b")),
        (longer(&"c".repeat(137)), longer("a")),
        // Truncated in the middle of a letter: both letters begin with the same byte.
        (umlaut, accent),
    ]
}

/// Prepares a read under one name and a write under the other.
fn prepared(begun: Script, [one, other]: &[Name; 2], payload: &str) -> Script {
    begun
        .parse(one.clone(), "SELECT 1")
        .sync()
        .close(Target::Statement, other.clone())
        .parse(other.clone(), payload)
}

/// The same with portals, of which it executes the first.
fn as_portals(begun: Script, [one, other]: &[Name; 2], payload: &str) -> Script {
    begun
        .query("BEGIN")
        .parse("r", "SELECT 1")
        .parse("w", payload)
        .bind(one.clone(), "r")
        .close(Target::Portal, other.clone())
        .bind(other.clone(), "w")
        .execute(one.clone())
        .sync()
        .query("COMMIT")
}

/// C1: a statement or portal made under one of two names that are equal in 63 bytes, and executed under the other.
#[test]
fn c1_names_that_are_cut() {
    let (mut asked, mut rest) = (Vec::new(), Vec::new());
    for session in [Session::Bare, Session::Neighbour] {
        for ((one, other), payload) in pairs(&cut_names(), &payloads(session)) {
            let names = [&one, &other].map(|name| Name::from(name.as_str()));
            let made = prepared(Script::of(session), &names, payload);
            asked.push(made.clone().bind("", one.clone()).execute("").sync());
            asked.push(as_portals(Script::of(session), &names, payload));
            // SQL truncates a name before a partial letter, the protocol inside of it: the two names then differ.
            rest.push(made.sync().query(format!("EXECUTE \"{one}\"")));
            let by_sql = Script::of(session)
                .query(format!("PREPARE \"{one}\" AS SELECT 1"))
                .query(format!("DEALLOCATE \"{other}\""))
                .query(format!("PREPARE \"{other}\" AS {payload}"))
                .query(format!("EXECUTE \"{one}\""));
            asked.push(by_sql);
        }
    }
    check(Worth::Writes, grouped(asked));
    check(Worth::NotAsked, grouped(rest));
}

/// C1: the server converts a name before it truncates it. 63 bytes of LATIN1 become 64, so the last one does not count.
#[test]
fn c1_names_that_are_cut_after_their_conversion() {
    let mut scripts = Vec::new();
    let names = [b'a', b'b'].map(|last| [&[b'n'; 61][..], &[0xe4, last]].concat());
    for session in [Session::Bare, Session::Neighbour] {
        let begun = Script::of(session).query("SET client_encoding = 'LATIN1'");
        for payload in payloads(session) {
            let made = prepared(begun.clone(), &names, payload);
            scripts.push(made.bind("", names[0].clone()).execute("").sync());
            scripts.push(as_portals(begun.clone(), &names, payload));
        }
    }
    check(Worth::Writes, grouped(scripts));
}

held! {
    /// C5: a name is redefined before it is executed, in one text and in one pipeline.
    c5_a_name_that_is_made_anew: Writes, "
Bare, Neighbour, grouped
    {gone} & {payload} = DEALLOCATE z & {p1} | DEALLOCATE ALL & {p2} | DEALLOCATE PREPARE z & {p3}
    PREPARE z AS SELECT 1
    {gone}; PREPARE z AS {payload}; EXECUTE z \
    | > {gone} ;; > PREPARE z AS {payload} ;; > EXECUTE z ;; Sync \
    | > {gone} ;; > PREPARE z AS {payload} ;; Bind . z ;; Execute . ;; Sync \
    | {gone} ;; PREPARE z AS {payload} ;; EXECUTE z \
    | {gone} ;; PREPARE z AS {payload} ;; Bind . z ;; Execute . ;; Sync
Bare, Neighbour, grouped
    PREPARE z AS SELECT 1 ;; DISCARD ALL ;; PREPARE z AS {p1}
    EXECUTE z | Bind . z ;; Execute . ;; Sync
Bare, Neighbour, grouped
    PREPARE z AS {p1} ;; Parse z SELECT 1 ;; Sync ;; Bind . z ;; Execute . ;; Sync";

    /// Found by reading: neither PREPARE nor DEALLOCATE is undone by the failed commit that answers it.
    c5_a_name_that_is_made_anew_by_a_failure: NotAsked, "
Bare, Neighbour, grouped
    {hold} = DECLARE c CURSOR WITH HOLD FOR SELECT 1/(random()*0)::int
    {gone} & {payload} = DEALLOCATE z & {p1} | DEALLOCATE ALL & {p2} | DEALLOCATE z & {p3}
    PREPARE z AS SELECT 1 | Parse z SELECT 1 ;; Sync
    {hold}; {gone}
    {hold}; PREPARE z AS {payload}
    - | RESET default_transaction_read_only; COMMIT; BEGIN
    EXECUTE z | Bind . z ;; Execute . ;; Sync
    COMMIT";

    /// Found by reading: what a name stood for runs no function, but a function has made it another.
    c5_a_name_that_a_function_makes_anew: NotAsked, "
Bare, Elsewhere, grouped
    {lift} = RESET default_transaction_read_only | SELECT sets('default_transaction_read_only', 'off')
    Parse z SELECT 1 | Parse z BEGIN
    Sync
    {anew} = SELECT runs('DEALLOCATE z') + runs('PREPARE z AS SELECT w()')
    {anew} | -
    Parse a {anew} ;; Parse r {lift} ;; Parse c COMMIT ;; Sync
    Bind . a ;; Execute . | -
    Bind . r ;; Execute . ;; Bind . c ;; Execute . ;; Bind . z ;; Execute . ;; Sync";
}

/// Statements that clear the token, or change it to the next.
const STEERING: &str = "SET fencing.token = '' | SELECT set_config('fencing.token', '', false) \
    | SET fencing.token = '@1' | RESET ALL | DISCARD ALL | ROLLBACK";

/// N4, found by the oracle: the statement that clears the token has a name that the server may read differently.
#[test]
fn n4_a_token_laid_down_by_a_name_beyond_ascii() {
    let all = conversations(&format!(
        "
Holder, grouped
    {{text}} = {STEERING}
    {{name}} = \u{e4} | {}\u{e4}
    - | BEGIN ;; SET fencing.token = '@1'
    Parse {{name}} {{text}} ;; Bind . {{name}} ;; Execute . | Parse . {{text}} ;; Bind {{name}} . ;; Execute {{name}}
    SELECT w() ;; COMMIT
",
        "n".repeat(62)
    ));
    check(Worth::NotAsked, all);
}

/// The same by SQL, which also runs statements and portals of the protocol.
#[test]
fn n4_a_token_laid_down_by_execute_and_fetch() {
    let all = conversations(&format!(
        "
Holder, grouped
    {{text}} = {STEERING}
    {{name}} = s | \u{e4}
    BEGIN ;; SET fencing.token = '@1' ;; Parse {{name}} {{text}} ;; Sync
    EXECUTE \"{{name}}\" \
    | > EXECUTE \"{{name}}\" ;; Sync \
    | PREPARE t AS EXECUTE \"{{name}}\" ;; EXECUTE t \
    | Parse t EXECUTE \"{{name}}\" ;; Sync ;; EXECUTE t \
    | Bind {{name}} {{name}} ;; Sync ;; FETCH ALL FROM \"{{name}}\" \
    | Bind {{name}} {{name}} ;; > MOVE ALL FROM \"{{name}}\" ;; Sync
    SELECT w() ;; COMMIT ;; SELECT w()
"
    ));
    check(Worth::NotAsked, all);
}
