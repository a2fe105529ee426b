//! Prepared statements of clients that share one server connection: each is parsed again where it is missing, and the
//! client sees what it would see with a server connection of its own.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, errors, pretty};

use super::with;

/// Proxies that share `max` server connections, for which clients wait shortly. The second one resets them only where
/// it must, so that the statements of other clients stay where a client looks for its own.
fn of(max: &str) -> [Stage; 2] {
    ["always", "auto"].map(|reset| {
        with(&[
            ("--backends-max", max),
            ("--backends-leaders", "0"),
            ("--backends-wait", "500ms"),
            ("--backends-reset", reset),
        ])
    })
}

/// What a client does, and what is done to the tables beside it.
#[derive(Clone)]
enum Step {
    Sends(Batch),
    Table(&'static str),
}

fn b() -> Batch {
    Batch::new()
}

fn sends(batch: &Batch) -> Step {
    Step::Sends(batch.clone())
}

fn query(sql: &str) -> Step {
    Step::Sends(b().query(sql))
}

fn parses(name: &str, sql: &str) -> Step {
    Step::Sends(b().parse(name, sql).sync())
}

fn runs(name: &str) -> Step {
    Step::Sends(b().bind("", name, &[]).execute("", 0).sync())
}

fn run_in(batch: Batch, name: &str) -> Batch {
    batch.bind("", name, &[]).execute("", 0)
}

fn is_idle(answer: &[Message]) -> bool {
    answer
        .last()
        .is_some_and(|last| last.tag == b'Z' && last.body == b"I")
}

/// What a client reads, without descriptions: the tables are not the same.
fn words(answer: &[Message]) -> String {
    let told = answer
        .iter()
        .filter(|message| message.tag != b't' && message.tag != b'T');
    pretty(&told.cloned().collect::<Vec<_>>())
}

const TABLE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)";

/// Runs the steps. While the client is idle, another one uses the same names for other statements.
fn conversation(
    stage: &Stage,
    client: &mut Wire,
    mut other: Option<&mut Wire>,
    steps: &[Step],
) -> String {
    stage.postgres.sql(TABLE);
    let mut said = String::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Table(sql) => drop(stage.postgres.sql(sql)),
            Step::Sends(batch) => {
                let answer = client.run(batch);
                said.push_str(&words(&answer));
                said.push_str("    --\n");
                if is_idle(&answer)
                    && at + 1 < steps.len()
                    && let Some(other) = &mut other
                {
                    let own = ["s", "t", "", "u"].iter().fold(b(), |batch, name| {
                        let batch = batch
                            .close_statement(name)
                            .parse(name, "SELECT 'of the other'");
                        run_in(batch, name)
                    });
                    let answer = other.run(&own.sync());
                    assert_eq!(errors(&answer), [""; 0], "{}", pretty(&answer));
                }
            }
        }
    }
    said
}

/// What `steps` says must be the same with a server connection that another client had in between.
#[track_caller]
fn is_the_same(stages: &[Stage], what: &str, steps: &[Step]) {
    for stage in stages {
        let mut direct = Wire::login(&stage.postgres.tcp(), &TRUSTED);
        let expect = conversation(stage, &mut direct, None, steps);
        let (mut client, mut other) = (stage.plain(), stage.plain());
        let found = conversation(stage, &mut client, Some(&mut other), steps);
        assert!(
            expect == found,
            "{what}\ndirect:\n{expect}\npooled:\n{found}"
        );
    }
}

#[test]
fn a_statement_is_where_its_client_is() {
    let stages = of("1");
    let both = b().parse("s", "SELECT 1").parse("t", "SELECT 2").sync();
    let pipeline = run_in(run_in(b(), "s"), "t").sync();
    let fails = b().parse("u", "SELECT 1/0").sync();
    let failing = run_in(run_in(run_in(b(), "s"), "u"), "t").sync();
    let described = b()
        .parse("s", "SELECT a, $1::text FROM t")
        .describe_statement("s")
        .sync();
    let value = b()
        .bind("", "s", &[Some("x")])
        .describe_portal("")
        .execute("", 0)
        .sync();
    let unnamed = b().parse("", "SELECT 7").describe_statement("").sync();
    let closed = b()
        .close_statement("s")
        .bind("", "s", &[])
        .execute("", 0)
        .sync();
    let conversations: &[(&str, &[Step])] = &[
        (
            "again and again",
            &[parses("s", "SELECT 1"), runs("s"), runs("s"), runs("s")],
        ),
        (
            "in a pipeline",
            &[sends(&both), sends(&pipeline), sends(&pipeline)],
        ),
        (
            "an error midway",
            &[
                sends(&both),
                sends(&fails),
                sends(&failing),
                sends(&pipeline),
            ],
        ),
        (
            "described",
            &[
                sends(&described),
                sends(&value),
                sends(&b().describe_statement("s").sync()),
                sends(&value),
            ],
        ),
        (
            "a name twice",
            &[parses("s", "SELECT 1"), parses("s", "SELECT 2"), runs("s")],
        ),
        (
            "no such name",
            &[
                runs("s"),
                sends(&b().describe_statement("s").sync()),
                sends(&b().close_statement("s").sync()),
            ],
        ),
        (
            "closed",
            &[
                parses("s", "SELECT 1"),
                sends(&closed),
                runs("s"),
                parses("s", "SELECT 2"),
                runs("s"),
            ],
        ),
        (
            "the unnamed one",
            &[
                sends(&unnamed),
                runs(""),
                runs(""),
                query("SELECT 1"),
                runs(""),
            ],
        ),
        (
            "the unnamed one closed",
            &[
                sends(&unnamed),
                sends(&b().close_statement("").sync()),
                runs(""),
            ],
        ),
        (
            "the unnamed one beside a named one",
            &[
                parses("s", "SELECT 1"),
                sends(&unnamed),
                runs("s"),
                runs(""),
            ],
        ),
        (
            "its table is gone",
            &[
                parses("s", "SELECT * FROM t"),
                Step::Table("DROP TABLE t"),
                runs("s"),
                sends(&b().close_statement("s").sync()),
                runs("s"),
            ],
        ),
        (
            "its transaction is rolled back",
            &[
                query("BEGIN"),
                parses("s", "SELECT 1"),
                query("ROLLBACK"),
                runs("s"),
            ],
        ),
        (
            "a failed transaction",
            &[
                parses("s", "SELECT 1"),
                parses("t", "ROLLBACK"),
                query("BEGIN"),
                query("SELECT 1/0"),
                runs("s"),
                runs("s"),
                runs("t"),
                runs("s"),
            ],
        ),
        (
            "a failed transaction in a pipeline",
            &[
                parses("s", "SELECT 1"),
                query("BEGIN"),
                query("SELECT 1/0"),
                sends(&pipeline),
                query("ROLLBACK"),
                runs("s"),
            ],
        ),
    ];
    for (what, steps) in conversations {
        is_the_same(&stages, what, steps);
    }
}

#[test]
fn a_statement_of_the_protocol_by_sql() {
    let stages = of("1");
    let one = parses("s", "SELECT 1");
    let extended = |sql: &str| sends(&b().statement(sql).sync());
    let conversations: &[(&str, &[Step])] = &[
        (
            "DEALLOCATE",
            &[
                one.clone(),
                query("DEALLOCATE s"),
                query("DEALLOCATE s"),
                runs("s"),
                one.clone(),
                runs("s"),
            ],
        ),
        (
            "DEALLOCATE of a lost table",
            &[
                parses("s", "SELECT * FROM t"),
                Step::Table("DROP TABLE t"),
                query("DEALLOCATE s"),
                one.clone(),
                runs("s"),
            ],
        ),
        (
            "DEALLOCATE with others",
            &[one.clone(), query("DEALLOCATE s; SELECT 1"), runs("s")],
        ),
        (
            "a failing DEALLOCATE",
            &[one.clone(), query("SELECT 1/0; DEALLOCATE s"), runs("s")],
        ),
        (
            "DEALLOCATE in a transaction",
            &[
                one.clone(),
                query("BEGIN"),
                query("DEALLOCATE s"),
                query("ROLLBACK"),
                runs("s"),
            ],
        ),
        (
            "DEALLOCATE in a failed transaction",
            &[
                one.clone(),
                query("BEGIN"),
                query("SELECT 1/0"),
                query("DEALLOCATE s"),
                query("ROLLBACK"),
                runs("s"),
            ],
        ),
        (
            "DEALLOCATE by the protocol",
            &[one.clone(), extended("DEALLOCATE s"), runs("s")],
        ),
        (
            "DEALLOCATE ALL",
            &[
                one.clone(),
                query("DEALLOCATE ALL"),
                runs("s"),
                one.clone(),
                runs("s"),
            ],
        ),
        (
            "DISCARD ALL",
            &[
                one.clone(),
                query("DISCARD ALL"),
                runs("s"),
                one.clone(),
                runs("s"),
            ],
        ),
        (
            "DEALLOCATE drops the unnamed one",
            &[
                one.clone(),
                parses("", "SELECT 2"),
                query("DEALLOCATE s"),
                runs(""),
            ],
        ),
        (
            "EXECUTE",
            &[
                one.clone(),
                query("EXECUTE s"),
                query("EXECUTE s"),
                runs("s"),
            ],
        ),
        (
            "EXECUTE by the protocol",
            &[one.clone(), extended("EXECUTE s"), extended("EXECUTE s")],
        ),
        (
            "EXECUTE of a lost table",
            &[
                parses("s", "SELECT * FROM t"),
                Step::Table("DROP TABLE t"),
                query("EXECUTE s"),
                query("SELECT 1"),
                query("EXECUTE s; SELECT 1"),
                query("SELECT 1"),
            ],
        ),
        (
            "PREPARE of its name",
            &[one.clone(), query("PREPARE s AS SELECT 2")],
        ),
    ];
    for (what, steps) in conversations {
        is_the_same(&stages, what, steps);
    }
}

#[test]
fn a_result_type_stays_what_the_client_was_told() {
    let stages = of("1");
    let parse = b().parse("s", "SELECT * FROM t");
    let by_statement = parse.clone().describe_statement("s").sync();
    let by_portal = parse
        .clone()
        .bind("", "s", &[])
        .describe_portal("")
        .execute("", 0)
        .sync();
    let again = b()
        .close_statement("s")
        .parse("s", "SELECT * FROM t")
        .describe_statement("s");
    let more = Step::Table("ALTER TABLE t ADD COLUMN b text");
    let anew = Step::Table(TABLE);
    for (what, told) in [("a statement", &by_statement), ("a portal", &by_portal)] {
        is_the_same(
            &stages,
            what,
            &[
                sends(told),
                runs("s"),
                more.clone(),
                runs("s"),
                runs("s"),
                sends(&b().describe_statement("s").sync()),
                sends(&run_in(again.clone(), "s").sync()),
                runs("s"),
            ],
        );
        // A table of the same columns is no change.
        is_the_same(&stages, what, &[sends(told), anew.clone(), runs("s")]);
    }
    let nothing = b()
        .parse("s", "SET LOCAL work_mem = '1MB'")
        .describe_statement("s")
        .sync();
    is_the_same(
        &stages,
        "no result",
        &[sends(&nothing), runs("s"), runs("s")],
    );
    is_the_same(
        &stages,
        "in a transaction",
        &[
            sends(&by_statement),
            more,
            query("BEGIN"),
            runs("s"),
            runs("s"),
            query("ROLLBACK"),
            runs("s"),
        ],
    );
}

/// Its literals were read by a setting of its transaction.
#[test]
fn a_statement_that_means_something_else_elsewhere_keeps_its_connection() {
    let [_, stage] = of("2");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("BEGIN; SET LOCAL datestyle = 'German'");
    one.run(&b().parse("s", "SELECT '1.2.2020'::date").sync());
    one.ok("COMMIT");
    let pid = super::backend(&mut one);
    for _ in 0..3 {
        assert_ne!(super::backend(&mut other), pid);
        let answer = one.run(&run_in(b(), "s").sync());
        assert!(
            pretty(&answer).contains("2020-02-01"),
            "{}",
            pretty(&answer)
        );
        assert_eq!(super::backend(&mut one), pid);
    }
    one.run(&b().close_statement("s").sync());
    other.ok("BEGIN");
    one.ok("SELECT 1");
    other.ok("COMMIT");
}

/// PostgreSQL does not know it then, and drivers parse it anew.
#[test]
fn where_a_setting_has_changed_no_statement_is_parsed_again() {
    let [_, stage] = of("1");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    let parse = b()
        .parse("s", "SELECT to_char('1.2.2020'::date, 'MM')")
        .sync();
    one.run(&parse);
    other.ok("SELECT 1");
    one.ok("SET datestyle = 'German'");
    let runs = run_in(b(), "s").sync();
    assert_eq!(errors(&one.run(&runs)), ["26000"]);
    assert_eq!(errors(&one.run(&parse)), [""; 0]);
    let answer = pretty(&one.run(&runs));
    assert!(answer.contains("\"02\""), "{answer}");
}

/// A write by name needs a token, wherever it was parsed.
#[test]
fn nobody_writes_by_a_statement_without_a_token() {
    let [_, stage] = of("1");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    stage.postgres.sql(TABLE);
    one.run(&b().parse("s", "INSERT INTO t VALUES (3)").sync());
    for _ in 0..3 {
        other.run(&b().parse("s", "SELECT 1").sync());
        let answer = one.run(&run_in(b(), "s").sync());
        assert_eq!(errors(&answer), ["PF002"], "{}", pretty(&answer));
        one.fails("EXECUTE s", "PF002");
    }
    other.ok("SET fencing.token = 34");
    other.run(&b().parse("w", "INSERT INTO t VALUES (4)").sync());
    for rows in ["3", "4", "5"] {
        let answer = one.run(&run_in(b(), "s").sync());
        assert_eq!(errors(&answer), ["PF002"], "{}", pretty(&answer));
        let answer = other.run(&run_in(b(), "w").sync());
        assert_eq!(errors(&answer), [""; 0], "{}", pretty(&answer));
        assert_eq!(one.rows("SELECT count(*) FROM t"), [[rows]]);
    }
}

/// Names in an older connection of the client may stand for what it has closed since.
#[test]
fn a_client_that_returns_finds_no_stale_name() {
    let [_, stage] = of("3");
    let mut others = [(); 2].map(|()| stage.leader("34"));
    let mut client = stage.leader("34");
    client.run(&b().parse("s", "SELECT 'old'").sync());
    let first = super::backend(&mut client);
    client.ok("SET fencing.token = ''");
    let second = super::backend(&mut client);
    assert_ne!(first, second);
    let anew = b().close_statement("s").parse("s", "SELECT 'new'");
    client.run(&anew.sync());
    // Its token makes the second connection one of the token, which other leaders take.
    client.ok("RESET fencing.token");
    let taken = others.each_mut().map(|other| {
        other.ok("BEGIN");
        super::backend(other)
    });
    assert!(taken.contains(&second));
    assert_eq!(super::backend(&mut client), first);
    let answer = pretty(&client.run(&run_in(b(), "s").sync()));
    assert!(answer.contains("new"), "{answer}");
}
