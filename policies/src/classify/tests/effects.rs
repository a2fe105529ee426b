//! The table of statements and their effects, `effects.txt`.

use super::of;
use crate::analysis::Statement;
use crate::control::Control;
use crate::effects::Class;
use crate::effects::{Effects, Tables};
use crate::object_name::ObjectName;

fn sorted(names: &[ObjectName]) -> String {
    let mut names: Vec<_> = names.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    names.join(", ")
}

fn tables(tables: &Tables) -> String {
    match (tables.are_named(), sorted(tables.names())) {
        (true, names) => names,
        (false, names) if names.is_empty() => "?".to_owned(),
        (false, names) => format!("{names}, ?"),
    }
}

pub(super) fn describe(effects: &Effects) -> String {
    let class = match effects.class {
        Class::Read => "read",
        Class::Write => "write",
    };
    let parts = [
        ("writes", tables(&effects.writes)),
        ("reads", tables(&effects.reads)),
        ("fn", sorted(&effects.functions)),
        ("set", effects.settings.join(", ")),
        (
            "cat",
            effects
                .category
                .map(|category| category.to_string())
                .unwrap_or_default(),
        ),
    ];
    let mut all = class.to_owned();
    for (name, what) in parts.iter().filter(|(_, what)| !what.is_empty()) {
        all.push_str(&format!("; {name}: {what}"));
    }
    all
}

fn effects_of(statement: &Statement) -> String {
    let prepared = |control: &Control| match control {
        Control::Prepare { effects, .. } => format!(", prepares {}", describe(effects)),
        _ => String::new(),
    };
    let prepared: String = statement.controls.iter().map(prepared).collect();
    describe(&statement.effects) + &prepared
}

#[test]
fn each_statement_has_its_effects() {
    let lines = include_str!("effects.txt").lines();
    let rows = lines.filter_map(|line| line.split_once(" => ").filter(|_| !line.starts_with('#')));
    for (text, expected) in rows.clone() {
        let verdict = of(text);
        assert_ne!(verdict.kind(), "unparsed", "{text}");
        for statement in &verdict.statements {
            let is_write = statement.effects.class == Class::Write;
            assert_eq!(is_write, statement.why.is_some(), "{text}");
        }
        let mut statements = verdict.statements.to_vec();
        let expected = match expected.strip_prefix("any: ") {
            None => expected.to_owned(),
            Some(category) => {
                for statement in &mut statements {
                    statement.effects.functions = Box::default();
                }
                format!("write; writes: ?; reads: ?; cat: {category}")
            }
        };
        let found: Vec<String> = statements.iter().map(effects_of).collect();
        assert_eq!(found.join(" | "), expected, "{text}");
    }
    assert!(rows.count() > 280, "the table is read wrongly");
    assert!(of("").statements.is_empty());
    let unparsed = describe(&of("selec").statements[0].effects);
    assert_eq!(unparsed, "write; writes: ?; reads: ?; cat: unparsed");
}
