//! Texts that PostgreSQL reads in another encoding than the last reported one (C2).

use pgpalisade_judges::mediation::conversation::{Message, Session};
use pgpalisade_judges::mediation::words::SWALLOWING;

use super::script::{Script, Worth, check, grouped};

/// One SELECT in UTF-8. In the other encoding the string ends early, and `payload` follows.
fn smuggled(lead: &[u8], payload: &str) -> Vec<u8> {
    [b"SELECT E'", lead, b"\\'; ", payload.as_bytes(), b" --'"].concat()
}

/// Ways to change the encoding of a session.
fn changes(encoding: &str) -> Vec<(Vec<String>, Option<&'static str>)> {
    let set = |value: &str| format!("SET client_encoding = '{value}'");
    let (own, utf8) = (set("$"), set("UTF8"));
    let local = "BEGIN ;; SET LOCAL client_encoding";
    let plain = [
        own.clone(),
        "SET NAMES '$'".to_owned(),
        "SELECT set_config('client_encoding', '$', false)".to_owned(),
        "SELECT sets('client_encoding', '$')".to_owned(),
        "SELECT runs('SET client_encoding = $')".to_owned(),
        format!("{local} = '$'"),
        "BEGIN ;; SELECT set_config('client_encoding', '$', true)".to_owned(),
        "BEGIN ;; SELECT sets_local('client_encoding', '$')".to_owned(),
        format!("{own} ;; BEGIN ;; {utf8} ;; ROLLBACK"),
        format!("{own} ;; {local} = 'UTF8' ;; COMMIT"),
        format!("{own} ;; BEGIN ;; SAVEPOINT s ;; {utf8} ;; ROLLBACK TO s"),
        format!("{own} ;; SELECT 1/0 ;; SELECT 1"),
    ];
    let back = ["RESET client_encoding", "RESET ALL", "DISCARD ALL"];
    let back = back.into_iter().chain(["SET client_encoding TO DEFAULT"]);
    let back = back.map(|end| (format!("{utf8} ;; {end}"), Some("client_encoding")));
    let all = plain.into_iter().map(|texts| (texts, None)).chain(back);
    let texts = |texts: String| {
        texts
            .split(" ;; ")
            .map(|text| text.replace('$', encoding))
            .collect()
    };
    all.map(|(all, from)| (texts(all), from)).collect()
}

/// C2: the encoding has changed and is not reported yet, and the next text ends a string early in it.
#[test]
fn c2_an_encoding_that_is_on_its_way() {
    let (mut simple, mut pipelined) = (Vec::new(), Vec::new());
    for (number, (encoding, lead)) in SWALLOWING.into_iter().enumerate() {
        // Each change with one of the encodings.
        let own = changes(encoding).into_iter().skip(number);
        for (texts, from_startup) in own.step_by(SWALLOWING.len()) {
            for (session, payload) in [
                (Session::Bare, "NOTIFY news"),
                (Session::Neighbour, "INSERT INTO a.jobs DEFAULT VALUES"),
            ] {
                let mut begun = Script::of(session);
                if let Some(name) = from_startup {
                    begun = begun.startup(name, encoding);
                }
                let texts = || texts.iter().map(String::as_str);
                let end = |script: Script| script.query(smuggled(lead, payload)).query("COMMIT");
                simple.push(end(texts().fold(begun.clone(), Script::query)));
                pipelined.push(end(texts().fold(begun, Script::extended).sync()));
            }
        }
    }
    check(Worth::Writes, grouped(simple));
    check(Worth::NotAsked, grouped(pipelined));
}

/// C2: the encoding has changed in the same pipeline, where each text is one statement, or a Query follows without a
/// Sync.
#[test]
fn c2_an_encoding_of_the_same_pipeline() {
    let mut scripts = Vec::new();
    for (encoding, lead) in SWALLOWING {
        for set in [
            format!("SET client_encoding = '{encoding}'"),
            format!("SELECT sets('client_encoding', '{encoding}')"),
        ] {
            let begun = Script::of(Session::Bare).extended(set.as_str());
            let one = [b"SELECT E'", lead, b"\\', pg_notify('news', 'x') --'"].concat();
            scripts.push(begun.clone().extended(one).sync());
            scripts.push(begun.query(smuggled(lead, "NOTIFY news")));
        }
    }
    check(Worth::Writes, grouped(scripts));
}

/// C2: through a parameter value, which no text shows.
#[test]
fn c2_an_encoding_by_parameter() {
    let mut scripts = Vec::new();
    for (encoding, lead) in SWALLOWING {
        for setter in [
            "SELECT set_config('client_encoding', $1, false)",
            "SELECT sets('client_encoding', $1)",
        ] {
            let script = Script::of(Session::Bare)
                .parse("", setter)
                .say(Message::Bind(Vec::new(), Vec::new(), vec![encoding.into()]))
                .execute("")
                .sync()
                .query(smuggled(lead, "NOTIFY news"));
            scripts.push(script);
        }
    }
    check(Worth::Writes, grouped(scripts));
}

/// C2, variant: the last byte of a constant, and what follows it, may be one character for the server.
#[test]
fn c2_constants_that_end_elsewhere() {
    let mut scripts = Vec::new();
    let begun = |encoding: &str| {
        Script::of(Session::Bare)
            .query("SET standard_conforming_strings = off")
            .query("SET backslash_quote = on")
            .query(format!("SET client_encoding = '{encoding}'"))
    };
    let text = |constant: &[u8]| [b"SELECT '", constant, b"', '; NOTIFY news --'"].concat();
    // A backslash in UTF-8.
    let script = begun("SHIFT_JIS_2004").query(text(b"\x81_"));
    check(Worth::Writes, grouped([script]));
    for (encoding, lead) in SWALLOWING {
        for constant in [lead, b"\x81", b"\xfe", b"\x81\x30\x81", b"\x8f\xa1"] {
            scripts.push(begun(encoding).query(text(constant)));
            scripts.push(begun(encoding).extended(text(constant)).sync());
        }
    }
    check(Worth::NotAsked, grouped(scripts));
}

/// C2, variant: a backslash in a plain string.
#[test]
fn c2_strings_that_end_elsewhere() {
    let mut scripts = Vec::new();
    for value in ["on", "off"] {
        let text = match value {
            "on" => "SELECT '\\'; NOTIFY news --'",
            _ => "SELECT '\\''; NOTIFY news --'; --'",
        };
        for form in [
            "SET standard_conforming_strings = $",
            "SELECT set_config('standard_conforming_strings', '$', false)",
            "SELECT sets('standard_conforming_strings', '$')",
        ] {
            let other = if value == "on" { "off" } else { "on" };
            let script = Script::of(Session::Bare)
                .query(form.replace('$', other))
                .query(form.replace('$', value))
                .query(text);
            scripts.push(script);
        }
    }
    check(Worth::NotAsked, grouped(scripts));
}

/// N6, found by the oracle: a token changes in a text that only the server can read.
#[test]
fn n6_a_token_in_a_text_that_cannot_be_read() {
    let mut scripts = Vec::new();
    for encoding in ["SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB"] {
        for set in [
            "SET fencing.token = '5'",
            "SET LOCAL FENCING.TOKEN = '5'",
            "SET fencing.token = ''",
            "SELECT set_config('fencing.token', '', false)",
            "RESET fencing.token",
        ] {
            let text = [
                format!("{set}; SELECT '").into_bytes(),
                b"\x81\x40'".to_vec(),
            ]
            .concat();
            let begun = Script::of(Session::Holder)
                .query(format!("SET client_encoding = '{encoding}'"))
                .query("BEGIN");
            let simple = begun.clone().query(text.clone());
            let extended = begun
                .parse("", set.as_bytes().to_vec())
                .parse("x", text)
                .bind("", "x");
            for script in [simple, extended.execute("").sync()] {
                scripts.push(script.query("SELECT w()").query("COMMIT"));
            }
        }
    }
    check(Worth::NotAsked, grouped(scripts));
}

/// Found by the generator: a trigger of a COPY changes the encoding. The server ignores the Sync before the data, so it
/// reports nothing, and reads the name in the next text as that of a table of another scope. PostgreSQL 18 leaves the
/// transaction of a Query after an unfinished pipeline open, and a Sync does not commit it.
#[test]
fn n19_an_encoding_that_a_copy_changes() {
    let mut scripts = Vec::new();
    for session in [Session::Neighbour, Session::Reader] {
        let begun = Script::of(session)
            .startup("aim.name", "client_encoding")
            .startup("aim.value", "EUC_CN");
        for copies in 1..=2 {
            let copied = (0..copies).fold(begun.clone(), |script, _| {
                script
                    .extended("COPY b.triggered (what) FROM STDIN")
                    .sync()
                    .say(Message::CopyData("x\n".into()))
                    .say(Message::CopyDone)
            });
            let write = b"INSERT INTO mixed.\xc3\xa4 VALUES ('x')".to_vec();
            scripts.push(copied.clone().query(write.clone()).query("COMMIT"));
            scripts.push(copied.extended(write).sync());
        }
    }
    check(Worth::Writes, grouped(scripts));
}
