//! Tokens that a transaction has given up: changed to the next (H1), or cleared (L2).

use pgpalisade_judges::mediation::conversation::{Message, Session};

use super::script::{HIDDEN, Script, Worth, check, grouped, pairs};

/// H1: a transaction has written under one token and continues under the next, which another session holds by then.
#[test]
fn h1_a_transaction_that_moves_to_another_token() {
    let mut scripts = Vec::new();
    let next = [
        "SET fencing.token = '@1'",
        "SET LOCAL fencing.token = '@1'",
        "SELECT set_config('fencing.token', '@1', false)",
    ];
    let next = next.map(|set| ["@1", "@2"].map(|by| (set, by)));
    let writes = ["INSERT INTO log VALUES ('x')", "SELECT w()", "TABLE v"];
    for (written, (set, by)) in pairs(&writes, next.as_flattened()) {
        for texts in [
            &["BEGIN", written, set][..],
            &["BEGIN", written, "SELECT 1", set],
            &["BEGIN", "SAVEPOINT s", "RELEASE s", written, set],
            &["BEGIN", "SAVEPOINT s", written, "SAVEPOINT t", set],
            &[
                "BEGIN",
                written,
                "SAVEPOINT s",
                "SELECT 1/0",
                "ROLLBACK TO s",
                set,
            ],
            &["BEGIN", written, "SAVEPOINT s", set, "ROLLBACK TO s"],
        ] {
            let what = format!("{}; then {by}", texts.join("; "));
            let begun = Script::of(Session::Holder);
            let simple = begun.clone().queries(texts);
            let text = begun.clone().text(texts);
            let pipeline = begun.pipeline(texts);
            for script in simple.groupings().into_iter().chain([text, pipeline]) {
                scripts.push((
                    what.clone(),
                    script.wait().declare(by).query("COMMIT").wait(),
                ));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// L2: the token is cleared, and later statements of the same text or transaction still write.
#[test]
fn l2_what_writes_after_the_token_is_laid_down() {
    let mut scripts = Vec::new();
    let down = [
        "SET fencing.token = ''",
        "SELECT set_config('fencing.token', '', false)",
        "SET SESSION fencing.token TO ''",
    ];
    for (down, hidden) in pairs(&down, &HIDDEN) {
        let held = format!(
            "DECLARE h CURSOR WITH HOLD FOR {}",
            if hidden == "TABLE v" {
                "SELECT * FROM v"
            } else {
                hidden
            }
        );
        let local = down
            .replace("SET fencing", "SET LOCAL fencing")
            .replace("false", "true");
        for texts in [
            &[down, hidden][..],
            &["BEGIN", down, hidden, "COMMIT"],
            &["BEGIN", &local, hidden, "COMMIT"],
            &["BEGIN", "SELECT 1", down, hidden, "COMMIT"],
            &["BEGIN", &held, down, "COMMIT"],
            &[
                "BEGIN",
                "SAVEPOINT s",
                down,
                "SAVEPOINT t",
                hidden,
                "RELEASE s",
                "COMMIT",
            ],
            &["BEGIN", down, "COMMIT", hidden],
        ] {
            let what = texts.join("; ");
            let begun = Script::of(Session::Holder);
            scripts.push((format!("{what}, one text"), begun.clone().text(texts)));
            scripts.extend(grouped(&what, begun.clone().queries(texts)));
            let pipeline = begun.pipeline(texts);
            scripts.extend(grouped(&format!("{what}, a pipeline"), pipeline));
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by the oracle: the data of a COPY must arrive, although later statements of its text wait for its reply.
#[test]
fn n2_a_copy_in_front_of_a_token() {
    let mut scripts = Vec::new();
    for behind in [
        "RESET fencing.token",
        "SET fencing.token = '@0'",
        "SHOW fencing.token",
        "RESET ALL",
    ] {
        for (end, hidden) in [
            (Message::CopyDone, HIDDEN[0]),
            (Message::CopyFail, HIDDEN[2]),
        ] {
            let parts = ["COPY log (what) FROM STDIN", behind].map(|sql| sql.as_bytes().to_vec());
            let data = Script::of(Session::Holder)
                .say(Message::CopyData(b"x\n".to_vec()))
                .say(end);
            let script = Script::of(Session::Holder)
                .say(Message::Query(parts.to_vec()))
                .then(&data);
            scripts.extend(grouped(behind, script.clone().query(hidden)));
            let twice = script
                .say(Message::Query(parts.iter().rev().cloned().collect()))
                .then(&data)
                .query(hidden);
            scripts.extend(grouped(&format!("{behind}, twice"), twice));
            let pipeline = Script::of(Session::Holder)
                .extended("COPY log (what) FROM STDIN")
                .sync()
                .then(&data)
                .extended(behind)
                .extended(hidden)
                .sync();
            scripts.extend(grouped(&format!("{behind}, a pipeline"), pipeline));
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by the oracle: PostgreSQL ends a session that sends anything else instead of a COPY's data.
#[test]
fn n2_a_token_in_the_place_of_the_data_of_a_copy() {
    let mut scripts = Vec::new();
    let begun = Script::of(Session::Holder).query("COPY log (what) FROM STDIN");
    for text in [
        "RESET fencing.token",
        "SET fencing.token = '@1'",
        "SELECT w()",
    ] {
        scripts.extend(grouped(text, begun.clone().query(text)));
        let parsed = begun.clone().extended(text).sync();
        scripts.extend(grouped(&format!("{text}, a pipeline"), parsed));
        let extended = Script::of(Session::Holder)
            .extended("COPY log (what) FROM STDIN")
            .extended(text)
            .sync();
        scripts.extend(grouped(&format!("{text}, one pipeline"), extended));
    }
    scripts.extend(grouped("a Bind", begun.clone().malformed(b'B', b"\0")));
    scripts.extend(grouped("an Execute", begun.execute("p").sync()));
    check(Worth::NotAsked, scripts);
}

/// Found by the oracle: with a row limit the portal is suspended, not complete, but the setting has changed.
#[test]
fn n3_a_token_laid_down_by_a_portal_that_is_suspended() {
    let mut scripts = Vec::new();
    for (local, hidden) in ["false", "true"]
        .into_iter()
        .flat_map(|local| HIDDEN.map(|hidden| (local, hidden)))
    {
        let begun = Script::of(Session::Holder)
            .query("BEGIN")
            .parse(
                "",
                format!("SELECT set_config('fencing.token', '', {local})"),
            )
            .bind("p", "")
            .say(Message::Execute(b"p".to_vec(), 1));
        let script = begun.clone().sync().query(hidden).query("COMMIT");
        scripts.extend(grouped(hidden, script));
        let pipeline = begun.extended(hidden).sync().query("COMMIT");
        scripts.extend(grouped(&format!("{hidden}, a pipeline"), pipeline));
    }
    check(Worth::NotAsked, scripts);
}

/// N5, found by the oracle: statements before a declaration in the same text run without its token.
#[test]
fn n5_a_write_in_front_of_a_declaration() {
    let mut scripts = Vec::new();
    let declare = "SELECT set_config('fencing.token', '@1', false)";
    let sets = [
        "SET fencing.token = '@1'",
        "SET LOCAL fencing.token = '@1'",
        declare,
    ];
    for (set, hidden) in pairs(&sets, &[HIDDEN[0], HIDDEN[2]]) {
        let down = "SET fencing.token = ''";
        let begun = Script::of(Session::Holder);
        for laid_down in [
            begun.clone().query(down),
            begun.clone().queries(&["BEGIN", down]),
            begun.clone().extended(down),
            begun.clone().query("BEGIN").extended(down),
        ] {
            for parts in [
                &[hidden, set][..],
                &["BEGIN", hidden, set, "COMMIT"],
                &[set, down, hidden],
            ] {
                scripts.extend(grouped(set, laid_down.clone().text(parts)));
            }
            let pipeline = laid_down.clone().extended(hidden).extended(set).sync();
            scripts.extend(grouped(&format!("{set}, a pipeline"), pipeline));
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: the end of a pipeline may undo a token set in it. Messages sent after it then run
/// under the earlier token.
#[test]
fn n8_a_token_whose_pipeline_is_undone() {
    let mut scripts = Vec::new();
    for set in [
        "SET fencing.token = '@1'",
        "SELECT set_config('fencing.token', '@1', false)",
    ] {
        for write in ["INSERT INTO log VALUES ('x')", "SELECT w()"] {
            let begun = Script::of(Session::Holder)
                .extended(set)
                .say(Message::Flush)
                .wait()
                .declare("@1");
            for (end, script) in [
                ("a query", begun.clone().query("SELECT 1/0")),
                ("no query", begun.clone().query("no query")),
                ("a malformed query", begun.clone().malformed(b'Q', b"x")),
                ("a Sync", begun.clone().extended("SELECT 1/0").sync()),
                (
                    "a refused query",
                    begun.clone().query("SET fencing.token = 'x'"),
                ),
                (
                    "a refused Execute",
                    begun.clone().extended("SET fencing.token = 'x'").sync(),
                ),
            ] {
                let what = format!("{set}; {end}; {write}");
                scripts.push((what.clone(), script.clone().query(write)));
                scripts.push((format!("{what}, parsed"), script.extended(write).sync()));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by random conversations: the session was prepared for a token that allows no write. A hidden write before
/// its declaration was then not guarded.
#[test]
fn n9_a_write_in_front_of_another_scope_s_token() {
    let mut scripts = Vec::new();
    for lay_down in [
        "SET fencing.token = ''",
        "SELECT set_config('fencing.token', '', false)",
        "SET LOCAL fencing.token = ''",
        "SET fencing.token = 'other=@1'",
    ] {
        let begun = Script::of(Session::Holder);
        for (place, script) in [
            ("a block", begun.clone().query("BEGIN").query(lay_down)),
            ("a pipeline", begun.clone().extended(lay_down)),
            (
                "a block, parsed",
                begun.clone().extended("BEGIN").extended(lay_down).sync(),
            ),
        ] {
            for text in [
                "SELECT w(); SET fencing.token = 'other=@0'",
                "SELECT w(); SELECT set_config('fencing.token', 'other=@0', false)",
                "SET fencing.token = 'other=@0'; SELECT w()",
                "SELECT w(); SET LOCAL fencing.token = 'other=@0'",
            ] {
                let what = format!("{lay_down} in {place}; {text}");
                scripts.push((what, script.clone().query(text).query("COMMIT")));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: a text clears the token and gets it back, by RESET or by the end of a transaction. It
/// was taken for a text that declares the token.
#[test]
fn n12_a_write_in_front_of_a_token_that_comes_back() {
    let mut scripts = Vec::new();
    let (down, local) = ("SET fencing.token = ''", "SET LOCAL fencing.token = ''");
    let set = "SELECT set_config('fencing.token', '', false)";
    for before in [
        &[down][..],
        &["BEGIN", down],
        &["BEGIN", local],
        &["BEGIN", "SAVEPOINT s", down],
        &["BEGIN", "SAVEPOINT s", local],
    ] {
        let begun = Script::of(Session::Holder).queries(before);
        for texts in [
            ["SELECT w()", down, "RESET fencing.token"],
            ["SELECT w()", set, "RESET fencing.token"],
            ["SELECT w()", local, "RESET ALL"],
            ["SELECT w()", down, "ROLLBACK TO s"],
            ["SELECT w()", local, "ROLLBACK TO s"],
            ["SELECT w()", local, "COMMIT"],
            ["SELECT w()", down, "COMMIT AND CHAIN"],
        ] {
            let script = begun.clone().text(&texts).query("COMMIT");
            scripts.push((
                format!("{}; {}", before.join("; "), texts.join("; ")),
                script,
            ));
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: COMMIT of a failed block undoes the token set in it. Later statements of the text
/// were judged by that token.
#[test]
fn n13_a_commit_that_undoes_a_token() {
    let mut scripts = Vec::new();
    let set = "SET fencing.token = '@0'";
    for (block, fails) in [
        (&[set, "BEGIN"][..], "SELECT 1/0"),
        (&[set, "SELECT 1", "BEGIN", "SAVEPOINT s"], "no statement"),
        (&["BEGIN", set], "SELECT 1/0"),
    ] {
        let begun = Script::of(Session::Holder).query("SET fencing.token = ''");
        let begun = begun.text(block).query(fails).wait();
        for end in [
            "COMMIT",
            "END",
            "COMMIT AND CHAIN",
            "PREPARE TRANSACTION 'p'",
        ] {
            for write in ["INSERT INTO log VALUES ('x')", "SELECT w()", "TABLE v"] {
                let script = begun.clone().text(&[end, write]).query("COMMIT");
                scripts.push((format!("{}; {end}; {write}", block.join("; ")), script));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: the same, before the failure is known.
#[test]
fn n15_a_commit_right_behind_a_failure() {
    let mut scripts = Vec::new();
    let begun = Script::of(Session::Holder).query("SET fencing.token = ''");
    let begun = begun.text(&["BEGIN", "SET fencing.token = '@0'"]);
    let begun = begun.query("SELECT 1").wait();
    for (what, failed) in [
        ("an error", begun.clone().query("SELECT 1/0")),
        ("a syntax error", begun.clone().query("no statement")),
        ("a refusal", begun.clone().query("SET fencing.token = 'x'")),
        ("an Execute", begun.clone().extended("SELECT 1/0").sync()),
        ("a malformed query", begun.clone().malformed(b'Q', b"x")),
    ] {
        for end in ["COMMIT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'p'"] {
            for write in ["INSERT INTO log VALUES ('x')", "SELECT w()", "TABLE v"] {
                let script = failed.clone().text(&[end, write]).query("COMMIT");
                scripts.push((format!("{what}; {end}; {write}"), script));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: the proxy made a transaction read-only after its session had cleared the token. A
/// rollback of that part made the transaction read-write again.
#[test]
fn n14_a_write_behind_a_rollback_that_undoes_the_guard() {
    let down = "SET fencing.token = ''";
    let guarded = "SELECT count(*) FROM v";
    let mut scripts = Vec::new();
    for (began, undo) in [
        (&["BEGIN", down, "SAVEPOINT s"][..], "ROLLBACK TO s"),
        (&["BEGIN", down, "SAVEPOINT s", guarded], "ROLLBACK TO s"),
        (
            &["BEGIN", down, "SAVEPOINT s", "SELECT 1/0"],
            "ROLLBACK TO s",
        ),
        (
            &["BEGIN", down, "SAVEPOINT s", "no statement"],
            "ROLLBACK TO s",
        ),
        (
            &["BEGIN", down, "SAVEPOINT s", "RELEASE nowhere"],
            "ROLLBACK TO s",
        ),
        (
            &["BEGIN", down, "COMMIT AND CHAIN", "SELECT w()"],
            "ROLLBACK AND CHAIN",
        ),
        (
            &["BEGIN", down, "COMMIT AND CHAIN", "SELECT w()"],
            "COMMIT AND CHAIN",
        ),
        (
            &["BEGIN", down, "COMMIT AND CHAIN", "SAVEPOINT s", guarded],
            "ROLLBACK AND CHAIN",
        ),
        (
            &[
                "BEGIN",
                down,
                "COMMIT AND CHAIN",
                "SAVEPOINT s",
                "SELECT w()",
            ],
            "ROLLBACK AND CHAIN",
        ),
    ] {
        let begun = Script::of(Session::Holder).queries(began);
        for write in ["SELECT w()", "INSERT INTO log VALUES ('x')"] {
            let what = format!("{}; {undo}; {write}", began.join("; "));
            for (form, script) in [
                ("one text", begun.clone().text(&[undo, write])),
                ("two", begun.clone().query(undo).query(write)),
                ("awaited", begun.clone().query(undo).wait().query(write)),
                (
                    "a pipeline",
                    begun.clone().extended(undo).extended(write).sync(),
                ),
                (
                    "a query behind",
                    begun.clone().extended(undo).sync().query(write),
                ),
            ] {
                scripts.push((format!("{what}, {form}"), script.query("COMMIT")));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: the same, with a block that begins after DISCARD ALL in its pipeline, and a write
/// after the server's reply.
#[test]
fn n17_a_write_in_a_block_that_began_behind_discard_all() {
    let mut scripts = Vec::new();
    for session in [Session::Elsewhere, Session::Taker, Session::Bare] {
        let discarded = Script::of(session).extended("DISCARD ALL");
        for (how, begun) in [
            ("extended", discarded.clone().extended("BEGIN").sync()),
            ("simple", discarded.clone().query("BEGIN")),
            (
                "chained",
                discarded
                    .clone()
                    .extended("BEGIN")
                    .extended("COMMIT AND CHAIN")
                    .sync(),
            ),
            (
                "savepoint",
                discarded.extended("BEGIN").extended("SAVEPOINT s").sync(),
            ),
        ] {
            let begun = begun.wait();
            let local = begun.clone().query("SET LOCAL fencing.token = ''").wait();
            let again = begun.clone().extended("BEGIN").sync().wait();
            for (what, begun) in [("", begun), ("a SET LOCAL", local), ("BEGIN again", again)] {
                for write in HIDDEN {
                    let name = format!("{session:?}, {how}, {what}: {write}");
                    let bound = begun.clone().extended(write).sync().query("COMMIT");
                    scripts.push((name.clone(), begun.clone().query(write).query("COMMIT")));
                    scripts.push((name, bound));
                }
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by the generator: a session whose startup token allows no write began read-write. DISCARD ALL ends its
/// transaction in the middle of a pipeline, and later statements begin with that mode.
#[test]
fn n16_a_write_behind_discard_all_in_a_pipeline() {
    let mut scripts = Vec::new();
    for session in [Session::Elsewhere, Session::Bare, Session::Holder] {
        let begun = Script::of(session);
        let begun = match session {
            Session::Holder => begun.query("SET fencing.token = 'other=@0'").wait(),
            _ => begun,
        };
        for write in HIDDEN {
            let discarded = begun.clone().extended("DISCARD ALL");
            let piped = discarded.clone().query(write);
            let bound = discarded.clone().extended(write).sync();
            let flushed = discarded.clone().say(Message::Flush).wait().query(write);
            let ended = discarded.clone().extended("COMMIT").extended(write).sync();
            let again = discarded.extended("DISCARD ALL").query(write);
            for script in [piped, bound, flushed, ended, again] {
                scripts.push((format!("{session:?}: {write}"), script));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: COMMIT undoes a default set for one transaction, and the server reports that only at
/// the end of the pipeline.
#[test]
fn n18_a_write_behind_the_commit_of_a_local_default() {
    let mut scripts = Vec::new();
    for session in [Session::Holder, Session::Elsewhere] {
        let begun = Script::of(session).query("BEGIN");
        let begun = begun
            .query("SET LOCAL default_transaction_read_only = on")
            .wait();
        for down in ["SET fencing.token = ''", "SELECT 1"] {
            for write in HIDDEN {
                let piped = begun.clone().extended("COMMIT").extended(down);
                let name = format!("{session:?}, {down}: {write}");
                scripts.push((name.clone(), piped.clone().extended(write).sync()));
                scripts.push((name, piped.query(write)));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}
