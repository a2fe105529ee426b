//! `pgpalisade report` as a user runs it: files, standard input, exit codes.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::{Place, check};

const NO_TOKEN: &str = concat!(
    r#"{"time":"2026-11-21T03:00:00.000000Z","kind":"no_token","sqlstate":"PF002","scope":"default","token":null,"#,
    r#""mark":null,"raised_at":null,"raised_by":null,"user":"app","database":"shop","application_name":"worker","#,
    r#""client_addr":"10.0.0.1:5000","backend_pid":77,"statement_class":"INSERT","#,
    r#""statement":"INSERT INTO t VALUES (?)","enforced":false,"authenticated":true,"count":1}"#
);

impl Place {
    fn report(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self
            .pgpalisade("report")
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // The command may have ended before it has read anything.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }
}

#[test]
fn files_and_standard_input_are_one_report() {
    let place = Place::new();
    let lines = format!("{NO_TOKEN}\n{NO_TOKEN}\n");
    // A rotated file, and one with an incomplete last line.
    place.write("r.1", &lines);
    place.write("r", format!("{NO_TOKEN}\n{}", NO_TOKEN.get(..60).unwrap()));
    let output = place.report(&["r", "r.1", "-", "--json"], &lines);
    let report: Value = serde_json::from_str(&check(&output, 0, "")).unwrap();
    assert_eq!(report["read"]["records"], 5);
    assert_eq!(report["read"]["torn_ends"], 1);
    assert_eq!(report["total"]["observed"], 5);
    assert_eq!(report["verdict"]["answer"], "not_yet");
}

#[test]
fn the_page_ends_with_what_to_do() {
    let place = Place::new();
    let page = check(&place.report(&["-"], &format!("{NO_TOKEN}\n")), 0, "");
    let (_, verdict) = page.split_once("\nVerdict: not yet.").unwrap();
    assert!(verdict.contains("SET fencing.token"), "{page}");
    assert!(verdict.contains("worker"), "{page}");
    let page = check(
        &place.report(&["--scope=default", "--since=2026-11-22", "-"], NO_TOKEN),
        0,
        "",
    );
    assert!(
        page.contains("without   1  records that the flags leave out"),
        "{page}"
    );
    assert!(page.contains("Verdict: nothing is recorded"), "{page}");
    let page = check(&place.report(&["--since=2026-11-22", "-"], NO_TOKEN), 0, "");
    assert!(page.starts_with("0 records\n"), "{page}");
}

/// A misspelt scope looks like one that is fine.
#[test]
fn a_scope_without_records_is_said() {
    let place = Place::new();
    place.write("r", format!("{NO_TOKEN}\n"));
    let says = "no record is of scope \"nope\"";
    let page = check(&place.report(&["--scope=nope", "r"], ""), 1, says);
    assert!(page.starts_with("0 records\n"), "{page}");
    // The scope is there, though not in this period.
    for flags in [
        &["--scope=default"][..],
        &["--scope=default", "--since=2026-11-22"],
    ] {
        check(&place.report(&[flags, &["r"]].concat(), ""), 0, "");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_that_says_what_to_do() {
    let place = Place::new();
    place.write("other.log", "starting\nready\n");
    place.write("r.gz", [0x1f, 0x8b, 8, 0]);
    fs::create_dir(place.0.path().join("directory")).unwrap();
    for (argument, says) in [
        ("missing", "cannot read missing: No such file"),
        ("directory", "cannot read directory: Is a directory"),
        (
            "other.log",
            "other.log is not a rejection log: it has no line that is a record",
        ),
        ("r.gz", "zcat r.gz | pgpalisade report -"),
    ] {
        let output = place.report(&[argument], "");
        assert_eq!(check(&output, 1, says), "", "no half report");
    }
    for arguments in [
        &[][..],
        &["--since=yesterday", "-"],
        &["--top=0", "-"],
        &["--observed", "-"],
        &["--scope=", "-"],
    ] {
        check(&place.report(arguments, ""), 2, "--help");
    }
    check(
        &place.report(&["--since=yesterday", "-"], ""),
        2,
        "how long ago: 90min",
    );
    // An empty log is valid.
    place.write("empty", "");
    check(&place.report(&["empty"], ""), 0, "");
}
