//! Requirements of statements, in tables of cases. Effects are literals, independent of classification.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;

use strum::IntoEnumIterator as _;

use super::*;
use crate::effects::Class;
use crate::effects::{Category, Effects, Tables};
use crate::object_name::ObjectName;
use crate::scan::needs_parse;

const NOBODY: Who<'_> = Who {
    user: "nobody",
    database: "shop",
    application_name: None,
    common_name: None,
    client: None,
};

#[track_caller]
fn session(text: &str, user: &str) -> SessionPolicy {
    let policy = Policy::parse(text, &|_| Ok(())).unwrap_or_else(|errors| panic!("{errors}"));
    Arc::new(policy).for_session(&Who { user, ..NOBODY })
}

fn name(text: &str) -> ObjectName {
    let (schema, name) = match text.split_once('.') {
        Some((schema, name)) => (Some(schema.into()), name),
        None => (None, text),
    };
    ObjectName {
        schema,
        name: name.into(),
    }
}

fn named(names: &[&str]) -> Tables {
    Tables::Named(names.iter().map(|text| name(text)).collect())
}

fn write(tables: &[&str]) -> Effects {
    Effects {
        class: Class::Write,
        writes: named(tables),
        ..Effects::none()
    }
}

fn write_anything() -> Effects {
    Effects::unknown(None)
}

fn kind(category: Category) -> Effects {
    Effects {
        category: Some(category),
        ..write(&["public.log"])
    }
}

fn read(tables: &[&str]) -> Effects {
    Effects {
        reads: named(tables),
        ..Effects::none()
    }
}

fn call(function: &str) -> Effects {
    Effects {
        functions: [name(function)].into(),
        ..Effects::none()
    }
}

/// A requirement in short: `free`, the scopes, `refused`.
fn short(session: &SessionPolicy, requirement: &Requirement) -> String {
    match requirement {
        Requirement::Free => "free".to_owned(),
        Requirement::Current(scopes) => names(session, scopes.as_slice()),
        Requirement::Refuse(_) => "refused".to_owned(),
    }
}

fn names(session: &SessionPolicy, scopes: &[ScopeId]) -> String {
    let all = session.policy().scopes();
    let names: Vec<&str> = scopes.iter().map(|scope| &*all[scope.index()]).collect();
    names.join(" ")
}

/// Requirement and decision must agree, and a decision has a reason.
#[track_caller]
fn check(session: &SessionPolicy, effects: &Effects, expect: &str) {
    let decision = session.decision(effects);
    assert_eq!(decision.requirement, session.requirement(effects));
    assert!(!decision.because.is_empty(), "no reason: {effects:?}");
    let found = short(session, &decision.requirement);
    assert_eq!(found, expect, "{effects:?}\n{:#?}", decision.because);
}

#[track_caller]
fn check_frame(session: &SessionPolicy, unlooked: Option<&str>, read_only_until: Option<&str>) {
    let found = session.unlooked().map(|scopes| names(session, scopes));
    assert_eq!(found.as_deref(), unlooked, "unlooked");
    let scopes = session.read_only_until();
    let found = scopes.map(|scopes| names(session, scopes));
    assert_eq!(found.as_deref(), read_only_until, "the read-only guard");
}

#[test]
fn without_a_file_writes_need_the_token_and_reads_nothing() {
    let session = session("", "app");
    check(&session, &Effects::none(), "free");
    check(&session, &call("anything"), "free");
    check(&session, &write_anything(), "default");
    check(&session, &write(&["public.jobs"]), "default");
    check(&session, &write(&["jobs"]), "default");
    check(&session, &write(&[]), "default");
    check_frame(&session, Some("default"), Some("default"));
    assert_eq!(session.mode(Some("default")), Mode::Enforce);
    assert_eq!(session.rule(), None);
    assert_eq!(session.policy().scopes(), [DEFAULT_SCOPE.into()]);
    let others = TokenBounds {
        max_scopes: Some(10_001),
        ..TokenBounds::default()
    };
    assert_eq!(session.policy().bounds("x"), others);
    assert_eq!(session.policy().bounds("default"), TokenBounds::default());
}

const SCOPES: &str = "\
[defaults]
scope = \"main\"
[scope.jobs]
tables = [\"jobs.*\", \"public.cron_lock\"]
[scope.mail]
tables = [\"*.outbox\", \"jobs.mail_*\"]
[[session]]
name = \"exempt\"
match = { user = \"migrator\" }
writes = \"allow\"
[[session]]
match = { user = \"report*\" }
writes = \"refuse\"
[[session]]
match = { user = \"loose\" }
scope = \"jobs\"
unknown_tables = \"session-scope\"
";

#[test]
fn writes_need_the_scopes_that_list_their_tables() {
    let app = session(SCOPES, "app");
    let found = app.policy().scopes();
    assert_eq!(found, ["main".into(), "jobs".into(), "mail".into()]);
    check(&app, &write(&["jobs.queue"]), "jobs");
    check(&app, &write(&["public.cron_lock"]), "jobs");
    check(&app, &write(&["other.cron_lock"]), "main");
    check(&app, &write(&["shop.outbox"]), "mail");
    check(&app, &write(&["public.orders"]), "main");
    // A table that two scopes list needs both; so do two tables.
    check(&app, &write(&["jobs.mail_out"]), "jobs mail");
    check(&app, &write(&["jobs.outbox"]), "jobs mail");
    check(
        &app,
        &write(&["shop.outbox", "public.orders", "jobs.a"]),
        "main jobs mail",
    );
    check(&app, &write(&["public.orders", "public.orders"]), "main");
    // No table, or an unknown one.
    check(&app, &write(&[]), "main");
    check(&app, &write_anything(), "main jobs mail");
    check_frame(&app, Some("main jobs mail"), Some("main jobs mail"));
}

#[test]
fn a_rule_exempts_refuses_or_gives_another_scope() {
    let migrator = session(SCOPES, "migrator");
    check(&migrator, &write(&["jobs.queue", "public.orders"]), "free");
    check(&migrator, &write_anything(), "free");
    check_frame(&migrator, Some(""), None);
    let found = migrator.rule().unwrap().to_string();
    assert_eq!(found, "rule \"exempt\", line 7");

    let report = session(SCOPES, "report7");
    check(&report, &write(&["jobs.queue"]), "refused");
    check(&report, &write_anything(), "refused");
    check(&report, &read(&["jobs.queue"]), "free");
    check_frame(&report, None, Some(""));
    let refusal = report.requirement(&write(&[]));
    let words = "The policy refuses writes (session rule 2, line 11)";
    assert_eq!(refusal, Requirement::Refuse(Reason::new(words)));

    let loose = session(SCOPES, "loose");
    check(&loose, &write_anything(), "jobs");
    check(&loose, &write(&["public.orders"]), "jobs");
    check(&loose, &write(&["a.outbox"]), "mail");
    let others = Effects {
        writes: named(&["shop.outbox"]).and_others(),
        ..write_anything()
    };
    check(&loose, &others, "jobs mail");
    check(&loose, &Effects::without_text(), "jobs mail");
    check_frame(&loose, Some("jobs mail"), Some("jobs mail"));
}

#[test]
fn the_first_rule_that_matches_counts() {
    let text = "\
[[session]]
match = { user = \"a\", database = \"other\" }
scope = \"one\"
[[session]]
match = { user = \"a\" }
scope = \"two\"
[[session]]
match = { user = [\"a\", \"b\"], network = \"10.0.0.0/8\" }
scope = \"three\"
";
    let policy = Arc::new(Policy::parse(text, &|_| Ok(())).unwrap());
    let scope = |user: &str, database: &str, client: Option<&str>| {
        let session = policy.for_session(&Who {
            user,
            database,
            application_name: Some("x"),
            common_name: None,
            client: client.map(|address| address.parse().unwrap()),
        });
        names(&session, &[session.scope()])
    };
    assert_eq!(scope("a", "other", None), "one");
    assert_eq!(scope("a", "shop", Some("10.0.0.1")), "two");
    assert_eq!(scope("b", "shop", Some("10.0.0.1")), "three");
    assert_eq!(scope("b", "shop", Some("11.0.0.1")), "default");
    assert_eq!(scope("b", "shop", None), "default");
}

#[test]
fn defaults_free_or_refuse_only_what_no_scope_lists() {
    let allow = "[defaults]\nwrites = \"allow\"\n[scope.jobs]\ntables = \"jobs.*\"\n";
    let app = session(allow, "app");
    check(&app, &write(&["public.orders"]), "free");
    check(&app, &write(&[]), "free");
    check(&app, &write(&["jobs.queue"]), "jobs");
    check(&app, &write(&["jobs.queue", "public.orders"]), "jobs");
    check(&app, &write_anything(), "jobs");
    check_frame(&app, Some("jobs"), None);

    let refuse = session(&allow.replace("\"allow\"", "\"refuse\""), "app");
    check(&refuse, &write(&["public.orders"]), "refused");
    check(&refuse, &write(&["jobs.queue"]), "jobs");
    check(&refuse, &write(&["jobs.queue", "public.orders"]), "refused");
    check(&refuse, &write_anything(), "refused");
    check_frame(&refuse, None, Some("jobs"));

    let only = session("[defaults]\nwrites = \"allow\"\n", "app");
    check(&only, &write_anything(), "free");
    check_frame(&only, Some(""), None);
}

/// The search path does not matter. A pattern for a whole schema does not settle the name: it may be in that schema,
/// or a table that no scope lists.
#[test]
fn a_name_without_schema_stands_for_every_listed_table_of_that_name() {
    let app = session(SCOPES, "app");
    check(&app, &write(&["cron_lock"]), "jobs");
    check(&app, &write(&["anything"]), "main jobs");
    check(&app, &write(&["mail_out"]), "main jobs mail");
    check(&app, &write(&["outbox"]), "jobs mail");
    check(&app, &write(&["public.orders", "queue"]), "main jobs");
    check(&app, &write(&["jobs.queue"]), "jobs");
    check(&app, &read(&["cron_lock"]), "free");
    check(&session(SCOPES, "migrator"), &write(&["cron_lock"]), "free");
    let exact = session(
        "[scope.a]\ntables = \"x.t\"\n[scope.b]\ntables = \"y.t\"\n",
        "app",
    );
    check(&exact, &write(&["t"]), "a b");
    check(&exact, &write(&["u"]), "default");
    let free = session("[scope.mail]\ntables = \"*.outbox\"\n", "app");
    check(&free, &write(&["outbox"]), "mail");
    check(&free, &write(&["other"]), "default");
    let one = session("[scope.default]\ntables = [\"a.x\", \"b.*\"]\n", "app");
    check(&one, &write(&["x"]), "default");
    check(&one, &write(&["other"]), "default");
    let system = session("[scope.system]\ntables = \"pg_catalog.*\"\n", "app");
    check(&system, &write(&["pg_class"]), "default system");
    let allow = "[defaults]\nwrites = \"allow\"\n[scope.jobs]\ntables = [\"jobs.*\", \"a.b\"]\n";
    check(&session(allow, "app"), &write(&["orders"]), "jobs");
    let refuse = session(&allow.replace("\"allow\"", "\"refuse\""), "app");
    check(&refuse, &write(&["b"]), "jobs");
    check(&refuse, &write(&["orders"]), "refused");
}

/// The catalog is free to read, even without its schema, except for names that a scope lists.
#[test]
fn names_of_the_catalog_are_free_to_read() {
    let text = "[defaults]\nreads = \"current\"\n[scope.jobs]\ntables = [\"public.pg_queue\", \"jobs.*\"]\n";
    let app = session(text, "app");
    check(&app, &read(&["pg_class"]), "free");
    check(&app, &read(&["pg_catalog.pg_class"]), "free");
    check(&app, &read(&["pg_queue"]), "jobs");
    check(&app, &read(&["jobs.pg_x"]), "jobs");
}

/// A text that was not read and may prepare a transaction is refused as either.
#[test]
fn an_unread_text_may_prepare_a_transaction() {
    let unread = Effects::unknown(Some(Category::PrepareTransaction));
    check(&session("", "app"), &unread, "refused");
    let allowed = "[defaults]\nallow = [\"prepare-transaction\"]\n";
    check(&session(allowed, "app"), &unread, "default");
    let neither = format!("{allowed}refuse = [\"unparsed\"]\n");
    check(&session(&neither, "app"), &unread, "refused");
}

#[test]
fn kinds_are_refused_by_name() {
    let text = "\
[defaults]
refuse = [\"ddl\", \"copy-program\"]
[[session]]
name = \"reporting\"
match = { user = \"report\" }
refuse = [\"call\"]
allow = [\"ddl\", \"replication\"]
";
    let app = session(text, "app");
    check(&app, &kind(Category::Ddl), "refused");
    check(&app, &kind(Category::Call), "default");
    check_frame(&app, None, Some("default"));
    let words =
        |session: &SessionPolicy, category| session.allows(category).unwrap_err().to_string();
    let found = words(&app, Category::Ddl);
    assert_eq!(found, "The policy refuses ddl ([defaults], line 2)");
    let nothing = "The policy refuses replication by default; allow = [\"replication\"] permits it";
    assert_eq!(words(&app, Category::Replication), nothing);
    assert_eq!(app.allows(Category::Call), Ok(()));

    let report = session(text, "report");
    check(&report, &kind(Category::Ddl), "default");
    check(&report, &kind(Category::CopyProgram), "refused");
    check(&report, &kind(Category::Call), "refused");
    assert_eq!(report.allows(Category::Replication), Ok(()));
    let words = words(&report, Category::Call);
    assert_eq!(
        words,
        "The policy refuses call (rule \"reporting\", line 3)"
    );
    // A category that is a read may be refused.
    let lock = Effects {
        class: Class::Read,
        ..kind(Category::Lock)
    };
    check(
        &session("[defaults]\nrefuse = \"lock\"\n", "app"),
        &lock,
        "refused",
    );
}

#[test]
fn refusing_replication_only_needs_no_look_at_texts() {
    let app = session("[defaults]\nrefuse = [\"replication\"]\n", "app");
    check_frame(&app, Some("default"), Some("default"));
    assert!(app.allows(Category::Replication).is_err());
    let open = session("[defaults]\nallow = [\"replication\"]\n", "app");
    assert_eq!(open.allows(Category::Replication), Ok(()));
}

#[test]
fn exempt_sessions_are_refused_kinds_all_the_same() {
    let text = "[defaults]\nrefuse = \"server\"\n[[session]]\nmatch = { user = \"m\" }\nwrites = \"allow\"\n";
    let exempt = session(text, "m");
    check(&exempt, &kind(Category::Server), "refused");
    check(&exempt, &kind(Category::Ddl), "free");
    check_frame(&exempt, None, None);
}

#[test]
fn reads_that_must_be_current_need_the_token() {
    let text = "[defaults]\nreads = \"current\"\n[scope.jobs]\ntables = \"jobs.*\"\n";
    let app = session(text, "app");
    check(&app, &Effects::none(), "free");
    check(
        &app,
        &read(&[
            "pg_catalog.pg_class",
            "information_schema.tables",
            "pg_stat_activity",
        ]),
        "free",
    );
    check(&app, &call("current_setting"), "free");
    check(&app, &call("pg_catalog.now"), "free");
    check(&app, &call("next_job"), "default");
    check(&app, &call("public.now"), "default");
    check(&app, &read(&["jobs.queue"]), "jobs");
    check(
        &app,
        &read(&["jobs.queue", "public.orders"]),
        "default jobs",
    );
    check(&app, &read(&["queue"]), "default jobs");
    let anything = Effects {
        reads: Tables::unknown(),
        ..Effects::none()
    };
    check(&app, &anything, "default jobs");
    // What a write reads must be current as well.
    let copies = Effects {
        reads: named(&["jobs.queue"]),
        ..write(&["public.orders"])
    };
    check(&app, &copies, "default jobs");
    check_frame(&app, Some("default jobs"), Some("default jobs"));
    let exempt = "[[session]]\nmatch = { user = \"m\" }\nwrites = \"allow\"\n";
    let exempt = session(&format!("{text}{exempt}"), "m");
    check(&exempt, &write(&["jobs.queue"]), "free");
    check(&exempt, &copies, "jobs");
    check_frame(&exempt, Some("default jobs"), None);
}

const MODES: &str = "\
[defaults]
mode = \"observe\"
[scope.strict]
tables = \"strict.*\"
mode = \"enforce\"
[[session]]
match = { user = \"test\" }
mode = \"observe\"
[[session]]
match = { user = \"hard\" }
mode = \"enforce\"
";

#[test]
fn the_rules_mode_counts_before_the_scopes_and_that_before_the_defaults() {
    let modes = |user: &str| {
        let session = session(MODES, user);
        [Some("strict"), Some("other"), None].map(|scope| session.mode(scope))
    };
    use Mode::{Enforce, Observe};
    assert_eq!(modes("app"), [Enforce, Observe, Observe]);
    assert_eq!(modes("test"), [Observe; 3]);
    assert_eq!(modes("hard"), [Enforce; 3]);
}

/// Read-only mode would refuse what is only observed: PostgreSQL cannot tell tables apart.
#[test]
fn what_is_only_observed_switches_the_read_only_guard_off() {
    check_frame(&session(MODES, "app"), Some("default strict"), None);
    check_frame(&session(MODES, "test"), Some("default strict"), None);
    check_frame(
        &session(MODES, "hard"),
        Some("default strict"),
        Some("default strict"),
    );
    let one = "[scope.loose]\ntables = \"loose.*\"\nmode = \"observe\"\n";
    check_frame(&session(one, "app"), Some("default loose"), None);
    // A scope that no session of this kind needs does not matter.
    let bare = "[scope.loose]\nmode = \"observe\"\n";
    check_frame(&session(bare, "app"), Some("default"), Some("default"));
    let refused = "[defaults]\nmode = \"observe\"\n[[session]]\nmatch = { user = \"r\" }\nwrites = \"refuse\"\n";
    check_frame(&session(refused, "r"), None, None);
    let kinds =
        "[defaults]\nmode = \"observe\"\nrefuse = \"ddl\"\n[scope.default]\nmode = \"enforce\"\n";
    check_frame(&session(kinds, "app"), None, None);
}

/// An observed refusal lets the statement through, so it must not hide an enforced scope.
#[test]
fn an_observed_refusal_does_not_hide_an_enforced_scope() {
    let text = format!("{MODES}[[session]]\nmatch = {{ user = \"r\" }}\nwrites = \"refuse\"\n");
    let text = text.replace("[defaults]\n", "[defaults]\nrefuse = \"truncate\"\n");
    let truncate = |table: &str| Effects {
        category: Some(Category::Truncate),
        ..write(&[table])
    };
    let app = session(&text, "app");
    check(&app, &truncate("strict.a"), "strict");
    check(&app, &truncate("loose.a"), "refused");
    check(&app, &truncate("a"), "default strict");
    check(&session(&text, "hard"), &truncate("strict.a"), "refused");
    check(&session(&text, "test"), &truncate("strict.a"), "refused");
    let refused = session(&text, "r");
    check(&refused, &write(&["strict.a"]), "strict");
    check(&refused, &write(&["loose.a"]), "refused");
}

#[test]
fn decisions_name_what_decided() {
    let because = |user: &str, effects: &Effects| session(SCOPES, user).decision(effects).because;
    assert_eq!(
        because("app", &write(&["public.cron_lock", "public.orders"])),
        [
            "it writes public.cron_lock, listed by scope \"jobs\" as public.cron_lock, line 4",
            "it writes public.orders, which no scope lists",
            "writes = \"token\" (the default), for the session's scope \"main\"",
        ]
    );
    assert_eq!(
        because("app", &write(&["queue"])),
        [
            "it writes queue, a name without a schema, listed by scope \"jobs\" as jobs.*, line 4",
            "it writes queue, which may be a table that no scope lists",
            "writes = \"token\" (the default), for the session's scope \"main\"",
        ]
    );
    assert_eq!(
        because("loose", &write_anything()),
        [
            "the query does not say which tables it writes: unknown_tables = \"session-scope\" \
             (session rule 3, line 14)",
            "writes = \"token\" (the default), for the session's scope \"jobs\"",
        ]
    );
    assert_eq!(
        because("migrator", &write_anything()),
        ["writes need nothing: writes = \"allow\" (rule \"exempt\", line 7)"]
    );
    assert_eq!(
        because("report", &write_anything()),
        ["The policy refuses writes (session rule 2, line 11)"]
    );
}

/// The hot path.
#[test]
fn a_requirement_without_table_scopes_does_not_allocate() {
    let text = "[defaults]\nreads = \"current\"\n[[session]]\nmatch = { user = \"m\" }\nwrites = \"allow\"\n";
    let statements = [
        write(&["public.jobs", "orders"]),
        write_anything(),
        read(&["public.jobs", "pg_class"]),
        call("next_job"),
        Effects::none(),
    ];
    for session in [session("", "app"), session(text, "app"), session(text, "m")] {
        let counted = allocation_counter::measure(|| {
            for effects in &statements {
                let requirement = session.requirement(effects);
                assert!(!matches!(requirement, Requirement::Refuse(_)));
            }
            let _ = (
                session.unlooked(),
                session.read_only_until(),
                session.mode(Some("x")),
            );
        });
        assert_eq!(counted.count_total, 0);
    }
    // One scope for a table does not change that.
    let session = session(SCOPES, "app");
    let one = write(&["jobs.queue"]);
    let counted = allocation_counter::measure(|| {
        let _ = session.requirement(&one);
    });
    assert_eq!(counted.count_total, 0);
}

/// A session may send a statement unlooked only if it needs no other scopes.
#[test]
fn unlooked_sessions_need_no_look() {
    for text in [
        "PREPARE TRANSACTION 'x'",
        "select 1; prepare /**/ transaction 'x'",
    ] {
        assert!(needs_parse(text.as_bytes()), "{text}");
    }
    let statements: Vec<Effects> = [
        write(&["jobs.queue", "public.orders", "a.outbox"]),
        write(&["cron_lock"]),
        write_anything(),
        read(&["jobs.queue", "orders"]),
        call("f"),
        write(&[]),
    ]
    .into_iter()
    .chain(
        Category::iter()
            .filter(|c| *c != Category::Replication)
            // Every text with it is examined: see below.
            .filter(|c| *c != Category::PrepareTransaction)
            .map(kind),
    )
    .collect();
    let files: Vec<String> = file::tests::examples()
        .into_iter()
        .map(|(_, text)| text)
        .chain([SCOPES.to_owned(), MODES.to_owned(), String::new()])
        .chain([format!("{SCOPES}\n[tokens]\nmax_step = 1\n")
            .replace("[defaults]", "[defaults]\nreads = \"current\"")])
        .collect();
    for text in &files {
        for user in [
            "app",
            "migrator",
            "report",
            "loose",
            "hard",
            "test",
            "reader",
            "scheduler",
        ] {
            let session = session(text, user);
            let Some(held) = session.unlooked() else {
                continue;
            };
            for effects in &statements {
                match session.requirement(effects) {
                    Requirement::Free => {}
                    Requirement::Current(scopes) => {
                        let mut scopes = scopes.as_slice().iter();
                        assert!(
                            scopes.all(|scope| held.contains(scope)),
                            "{user}: {effects:?}\n{text}"
                        );
                    }
                    other => panic!("{user}: {other:?}: {effects:?}\n{text}"),
                }
            }
        }
    }
}

#[test]
fn a_rule_gives_its_sessions_a_connection_of_their_own() {
    let rule = "[[session]]\nmatch = { user = \"own\" }\npool = \"session\"\n";
    for (user, expect) in [("own", Some(PoolMode::Session)), ("other", None)] {
        assert_eq!(session(rule, user).pool_mode(), expect, "{user}");
    }
}
