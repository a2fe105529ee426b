//! Every kind of statement, compared with a READ ONLY transaction of PostgreSQL.

use std::collections::BTreeSet;

use pgpalisade_policies::Class;
use serde_json::Value;

use super::corpus::{self, cases};
use super::kinds;
use super::world::{Around, Outcome, Protocol, Runner, Watch, changed, class_of, stage};

/// Names of all statements in a parse tree, at any depth.
fn statements_in(tree: &Value, found: &mut BTreeSet<String>) {
    match tree {
        Value::Object(fields) => {
            for (key, value) in fields {
                if kinds::STATEMENTS.contains(&key.as_str()) {
                    found.insert(key.clone());
                }
                statements_in(value, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                statements_in(item, found);
            }
        }
        _ => {}
    }
}

#[test]
fn the_corpus_has_every_kind_of_statement() {
    let misplaced: Vec<_> = kinds::PARTS
        .iter()
        .filter(|part| part.ends_with("Stmt"))
        .collect();
    assert!(misplaced.is_empty(), "listed as parts: {misplaced:?}");
    let mut found = BTreeSet::new();
    for file in [corpus::STATEMENTS, corpus::PAST, corpus::HIDDEN] {
        for text in cases(file).iter().flat_map(|case| &case.script) {
            let tree = pg_query::parse(text, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
            let top = &tree.protobuf.stmts[0].stmt;
            if let Some(node) = top.as_ref().and_then(|node| node.node.as_ref()) {
                found.insert(kinds::name(node).to_owned());
            }
            statements_in(&serde_json::to_value(&tree.protobuf).unwrap(), &mut found);
        }
    }
    let never: Vec<&str> = kinds::NEVER_SENT.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = kinds::STATEMENTS
        .iter()
        .filter(|name| !found.contains(**name) && !never.contains(name))
        .collect();
    assert!(missing.is_empty(), "no text of the corpus has: {missing:?}");
    let sent: Vec<_> = never.iter().filter(|name| found.contains(**name)).collect();
    assert!(
        sent.is_empty(),
        "they are in the corpus after all: {sent:?}"
    );
    println!("{} kinds of statements", found.len());
}

#[test]
fn what_postgresql_refuses_is_a_write() {
    let stage = stage();
    let mut watch = Watch::new(&stage);
    let mut oracle = Runner::oracle(&stage);
    let mut plain = Runner::without_token(&stage);
    let before = watch.fingerprint();
    let (mut wrong, mut reads, mut strict) = (Vec::new(), 0, Vec::new());
    let all = cases(corpus::STATEMENTS);
    for case in &all {
        let text = case.text();
        let class = class_of(&case.script);
        let by_server = oracle.run(&case.script, Around::Block, Protocol::Simple);
        let since = case.tagged("since").map(|since| since.parse().unwrap());
        let is_newer = since.is_some_and(|since: u32| since > stage.postgres.version());
        let error = if is_newer {
            Some("42601")
        } else {
            case.tagged("error")
        };
        match (&by_server, error) {
            (Outcome::Passed, None) => {
                reads += 1;
                if class == Class::Write {
                    strict.push(text.clone());
                }
            }
            (Outcome::Failed(state), None) if state == "25006" => {
                if class == Class::Read {
                    wrong.push(format!("a write is called a read: {text}"));
                }
            }
            (Outcome::Failed(state), Some(expected)) if state == expected => {}
            (other, _) => wrong.push(format!("{other:?} says nothing: {text}")),
        }
        for by in [Protocol::Simple, Protocol::Extended] {
            let xid = watch.next_xid();
            let by_proxy = plain.run(&case.script, Around::Block, by);
            let expected = match class {
                // In the extended protocol the server may fail in Parse or Bind, before the refused Execute.
                Class::Write if by == Protocol::Extended && by_proxy == by_server => {
                    by_server.clone()
                }
                Class::Write if by == Protocol::Extended && by_proxy.is("25006") => {
                    by_proxy.clone()
                }
                Class::Write => Outcome::Failed("PF002".to_owned()),
                Class::Read => by_server.clone(),
            };
            if by_proxy != expected {
                wrong.push(format!("{by:?} {by_proxy:?}, not {expected:?}: {text}"));
            }
            if watch.next_xid() != xid {
                wrong.push(format!("it wrote without a token: {text}"));
            }
        }
    }
    println!(
        "{} statements; PostgreSQL lets {reads} run, of which {} are writes for us:\n  {}",
        all.len(),
        strict.len(),
        strict.join("\n  ")
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let changes = changed(&before, &watch.fingerprint());
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}
