//! Tables of statements and their effects: `write; writes: jobs.a, b; reads: c; fn: now; set: search_path; cat: ddl`.
//! `?` stands for tables that the text does not name.

use super::of;
use crate::analysis::Control;
use crate::effects::Class;
use crate::effects::{Effects, Tables};
use crate::object_name::ObjectName;

fn sorted(names: &[ObjectName]) -> String {
    let mut names: Vec<_> = names.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    names.join(", ")
}

fn tables(tables: &Tables) -> String {
    match tables {
        Tables::Unknown => "?".to_owned(),
        Tables::Named(names) => sorted(names),
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

#[track_caller]
fn check(text: &str, expected: &str) {
    let verdict = of(text);
    assert_ne!(verdict.kind(), "unparsed", "{text}");
    let found: Vec<_> = verdict
        .statements
        .iter()
        .map(|statement| describe(&statement.effects))
        .collect();
    assert_eq!(found.join(" | "), expected, "{text}");
}

#[track_caller]
fn check_all(table: &[(&str, &str)]) {
    for (text, expected) in table {
        check(text, expected);
    }
}

#[test]
fn queries() {
    check_all(&[
        ("", ""),
        ("select 1", "read"),
        ("select * from t", "read; reads: t"),
        ("table only jobs.t", "read; reads: jobs.t"),
        ("select * from db.jobs.T, \"T\"", "read; reads: T, jobs.t"),
        (
            "select a.x from a, b as a2 join c on true, lateral (select * from d) e",
            "read; reads: a, b, c, d",
        ),
        (
            "select (select 1 from a), array(table b) from c where exists (table d) order by (table e) limit (table f)",
            "read; reads: a, b, c, d, e, f",
        ),
        (
            "table a union (table b except table a) intersect values ((table c))",
            "read; reads: a, b, c",
        ),
        (
            "select now(), S.f(g(1)), \"F\"(), count(*) from t",
            "read; reads: t; fn: F, count, g, now, s.f",
        ),
        (
            "select * from f(1) x, rows from (g(), h()) y",
            "read; fn: f, g, h",
        ),
        (
            "select * from t tablesample bernoulli (1)",
            "read; reads: t",
        ),
        (
            "select * from t1; delete from t2",
            "read; reads: t1 | write; writes: t2",
        ),
        (
            "insert into jobs.a select * from b returning (table c)",
            "write; writes: jobs.a; reads: b, c",
        ),
        (
            "insert into a values ((select 1 from a)) on conflict (x) do update set y = (table d)",
            "write; writes: a; reads: a, d",
        ),
        (
            "update a set x = f() from b where a.y = b.y",
            "write; writes: a; reads: b; fn: f",
        ),
        (
            "update only a as z set x = 1 where z.y in (table c)",
            "write; writes: a; reads: c",
        ),
        (
            "delete from a using b, c as a where true",
            "write; writes: a; reads: b, c",
        ),
        (
            "merge into a using (table b) s on true when matched then update set x = (table c)",
            "write; writes: a; reads: b, c",
        ),
        (
            "merge into a using b on true when matched then delete",
            "write; writes: a; reads: b",
        ),
        (
            "select * into x from t",
            "write; writes: x; reads: t; cat: ddl",
        ),
        (
            "create table s.x as select f() from t",
            "write; writes: s.x; reads: t; fn: f; cat: ddl",
        ),
        (
            "create materialized view m as table t with no data",
            "write; writes: m; reads: t; cat: ddl",
        ),
        (
            "create table x as execute p",
            "write; writes: ?; reads: ?; cat: ddl",
        ),
    ]);
}

/// A CTE hides a table only where it is visible.
#[test]
fn t2_names_of_ctes_are_no_tables() {
    check_all(&[
        ("with a as (table t) table a", "read; reads: t"),
        ("with a as (table a) table a", "read; reads: a"),
        (
            "with a as (table b), b as (table a) select * from a, b",
            "read; reads: b",
        ),
        (
            "with recursive a as (table b), b as (table a) select * from a, b",
            "read",
        ),
        (
            "with recursive a as (select 1 union select x from a join t on true) table a",
            "read; reads: t",
        ),
        ("with a as (select 1) table s.a", "read; reads: s.a"),
        (
            "with a as (select 1) select * from b where exists (select 1 from a, c)",
            "read; reads: b, c",
        ),
        (
            "select * from (with a as (select 1) table a) x, a",
            "read; reads: a",
        ),
        (
            "table a union (with a as (select 1) table a)",
            "read; reads: a",
        ),
        (
            "with a as (select 1) (table a union table b)",
            "read; reads: b",
        ),
        (
            "with x as (with a as (table t) table a) select * from x, a",
            "read; reads: a, t",
        ),
        (
            "with x as (select 1), y as (with z as (table x) table z) select * from y, z",
            "read; reads: z",
        ),
        (
            "with a as (delete from a returning 1) table a",
            "write; writes: a",
        ),
        (
            "with a as (insert into b table c returning 1), b as (update a set x = 1 returning 1) select * from b, c",
            "write; writes: a, b; reads: c",
        ),
        (
            "with a as (select 1) insert into a table a",
            "write; writes: a",
        ),
        (
            "with a as (select 1) update a set x = 1 from a",
            "write; writes: a",
        ),
        (
            "with a as (table t) merge into b using a on true when matched then delete",
            "write; writes: b; reads: t",
        ),
        (
            "insert into b with a as (table t) table a",
            "write; writes: b; reads: t",
        ),
        (
            "with a as materialized (select 1) search depth first by x set y select * from a",
            "read",
        ),
        (
            "select * from (with x as (update t set a = 1 returning *) select * from x) y",
            "write; writes: t",
        ),
    ]);
}

#[test]
fn locks() {
    check_all(&[
        (
            "select * from a, b for update",
            "write; writes: a, b; reads: a, b",
        ),
        (
            "select * from a, b where exists (table c) for share",
            "write; writes: a, b; reads: a, b, c",
        ),
        (
            "select * from s.a, b x for update of a",
            "write; writes: s.a; reads: b, s.a",
        ),
        (
            "select * from a, b x for update of x nowait",
            "write; writes: b; reads: a, b",
        ),
        (
            "select * from a x, b y for update of x for share of y",
            "write; writes: a, b; reads: a, b",
        ),
        (
            "select * from a x, b y for update of x for share",
            "write; writes: a, b; reads: a, b",
        ),
        (
            "select * from (select * from a, b) x, c for update of x",
            "write; writes: a, b, c; reads: a, b, c",
        ),
        // The subquery has the name of a table inside it.
        (
            "select * from (select * from a x, b) x for update of x",
            "write; writes: a, b; reads: a, b",
        ),
        (
            "select * from a join b on exists (select 1 from c a) for no key update of a",
            "write; writes: a; reads: a, b, c",
        ),
        (
            "select * from a where x in (select y from b for update)",
            "write; writes: b; reads: a, b",
        ),
        (
            "with c as (table a) select * from c, b for update",
            "write; writes: b; reads: a, b",
        ),
        (
            "with c as (select * from a for update) select * from c, b",
            "write; writes: a; reads: a, b",
        ),
        (
            "(table a union table b) for update",
            "write; writes: a, b; reads: a, b",
        ),
        ("lock table a, s.b", "write; writes: a, s.b; cat: lock"),
        (
            "lock table a in access share mode",
            "read; reads: a; cat: lock",
        ),
    ]);
}

#[test]
fn t6_copy() {
    check_all(&[
        ("copy s.t from stdin", "write; writes: s.t"),
        (
            "copy t (a) from stdin where f(a) > 1",
            "write; writes: t; fn: f",
        ),
        ("copy t to stdout", "read; reads: t"),
        (
            "copy (select f() from t) to stdout",
            "read; reads: t; fn: f",
        ),
        (
            "copy (with x as (update t set a = 1 returning *) select * from x, y) to stdout",
            "write; writes: t; reads: y",
        ),
        (
            "copy (insert into t table u returning *) to stdout",
            "write; writes: t; reads: u",
        ),
        ("copy t from '/x'", "write; writes: t; cat: copy-file"),
        (
            "copy t from program 'x'",
            "write; writes: ?; cat: copy-program",
        ),
        (
            "copy t to '/x'",
            "write; writes: ?; reads: t; cat: copy-file",
        ),
        (
            "copy (table t) to program 'x'",
            "write; writes: ?; reads: t; cat: copy-program",
        ),
    ]);
}

#[test]
fn t9_t10_t12_what_carries_another_statement() {
    check_all(&[
        ("explain select f() from t", "read; reads: t; fn: f"),
        ("explain insert into t table u", "read; reads: t, u"),
        ("explain (analyze off) delete from t", "read; reads: t"),
        ("explain create table x as table t", "read; reads: t, x"),
        (
            "explain analyze insert into t table u",
            "write; writes: t; reads: u",
        ),
        (
            "explain (analyze) create table x as table t",
            "write; writes: x; reads: t; cat: ddl",
        ),
        (
            "explain analyze with x as (delete from t returning 1) table x",
            "write; writes: t",
        ),
        (
            "explain analyze refresh materialized view m",
            "write; writes: m; cat: maintenance",
        ),
        ("explain (shiny) table t", "write; writes: ?; reads: t"),
        ("explain execute p(f())", "read; fn: f"),
        ("explain analyze execute p", "read"),
        (
            "explain analyze declare c cursor for table t",
            "read; reads: t",
        ),
        (
            "declare c cursor for select f() from t",
            "read; reads: t; fn: f",
        ),
        (
            "declare c cursor for select * from t for update",
            "write; writes: t; reads: t",
        ),
        ("fetch 10 from c", "read; reads: ?"),
        ("move 10 from c", "read; reads: ?"),
        ("close c", "read"),
        ("prepare p as delete from t", "read"),
        (
            "execute p(f(), nextval('s'))",
            "write; writes: s; fn: f, nextval",
        ),
        ("deallocate all", "read"),
    ]);
}

#[test]
fn t10_a_prepared_statement_carries_its_effects() {
    for (text, expected) in [
        ("prepare p as table t", "read; reads: t"),
        (
            "prepare p as select set_config('search_path', $1, true)",
            "read; fn: set_config; set: search_path",
        ),
        (
            "prepare p as with x as (delete from a returning 1) insert into b table x",
            "write; writes: a, b",
        ),
        (
            "prepare p as select nextval($1)",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
    ] {
        let verdict = of(text);
        let [statement] = &*verdict.statements else {
            panic!("{text}: {verdict:?}");
        };
        let [Control::Prepare { effects, .. }] = &*statement.controls else {
            panic!("{text}: {verdict:?}");
        };
        assert_eq!(describe(effects), expected, "{text}");
        assert_eq!(describe(&statement.effects), "read", "{text}");
    }
}

#[test]
fn t4_functions_that_write() {
    check_all(&[
        ("select nextval('s')", "write; writes: s; fn: nextval"),
        (
            "select nextval('Jobs.\"S\"'::regclass) from t",
            "write; writes: jobs.S; reads: t; fn: nextval",
        ),
        (
            "select pg_catalog.setval('a.b'::pg_catalog.text, (table t))",
            "write; writes: a.b; reads: t; fn: pg_catalog.setval",
        ),
        (
            "insert into t values (nextval('s'))",
            "write; writes: s, t; fn: nextval",
        ),
        (
            "select nextval(x) from t",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval('123')",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval(123)",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval('a' || 'b')",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval('s'::name)",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval('s'::varchar(1))",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select nextval('s'::text[])",
            "write; writes: ?; reads: ?; fn: nextval",
        ),
        (
            "select my.nextval('s')",
            "write; writes: ?; reads: ?; fn: my.nextval",
        ),
        (
            "select setval(nextval('s')::text, 1)",
            "write; writes: ?; reads: ?; fn: nextval, setval",
        ),
        (
            "select setval('a', nextval('b'))",
            "write; writes: a, b; fn: nextval, setval",
        ),
        (
            "select dblink_exec('x', 'delete from t') from t",
            "write; writes: ?; reads: ?; fn: dblink_exec",
        ),
        (
            "select query_to_xml('delete from t', true, true, '')",
            "write; writes: ?; reads: ?; fn: query_to_xml",
        ),
        (
            "delete from t where lo_unlink(x) = 1",
            "write; writes: ?; reads: ?; fn: lo_unlink",
        ),
        (
            "select txid_current() from t",
            "write; reads: t; fn: txid_current",
        ),
        (
            "select pg_notify('a', 'b') from t",
            "write; reads: t; fn: pg_notify; cat: notify",
        ),
    ]);
}

#[test]
fn t26_settings() {
    check_all(&[
        ("set search_path = a, b", "read; set: search_path"),
        ("set local \"Work_MEM\" = 1", "read; set: work_mem"),
        ("set time zone 'UTC'", "read; set: timezone"),
        ("set names 'utf8'", "read; set: client_encoding"),
        ("set role bob", "read; set: role"),
        ("reset role", "read; set: role"),
        ("set fencing.token = 3", "read; set: fencing.token"),
        ("reset all", "read; set: *"),
        ("discard all", "read; set: *"),
        ("discard temp", "read"),
        ("begin", "read"),
        (
            "begin isolation level serializable, read write",
            "write; set: transaction_isolation, transaction_read_only",
        ),
        (
            "set transaction read only, deferrable",
            "read; set: transaction_deferrable, transaction_read_only",
        ),
        (
            "set session characteristics as transaction read write",
            "write; set: default_transaction_read_only",
        ),
        ("set transaction snapshot 'x'", "read"),
        (
            "set default_transaction_read_only = off",
            "write; set: default_transaction_read_only",
        ),
        (
            "select set_config('Search_Path', x, true) from t",
            "read; reads: t; fn: set_config; set: search_path",
        ),
        (
            "select set_config('a.b'::text, 'c', true), pg_catalog.set_config('a.b', 'd', true)",
            "read; fn: pg_catalog.set_config, set_config; set: a.b",
        ),
        (
            "select set_config(x, 'c', true) from t",
            "write; reads: t; fn: set_config; set: *",
        ),
        (
            "select set_config(set_config('a.b', 'c', true), 'd', true)",
            "write; fn: set_config; set: *, a.b",
        ),
        ("show all", "read"),
        ("commit", "read"),
        ("savepoint a", "read"),
        (
            "prepare transaction 'x'",
            "write; writes: ?; reads: ?; cat: prepare-transaction",
        ),
        (
            "commit prepared 'x'",
            "write; writes: ?; reads: ?; cat: prepared-transactions",
        ),
        (
            "rollback prepared 'x'",
            "write; writes: ?; reads: ?; cat: prepared-transactions",
        ),
        ("set constraints all immediate", "read"),
        ("listen x", "read"),
        ("unlisten *", "read"),
    ]);
}

/// DDL and maintenance that name their tables.
#[test]
fn statements_that_name_tables() {
    check_all(&[
        (
            "create table s.t (a int default f() references u, foreign key (a) references v, like w)",
            "write; writes: s.t, u, v; reads: w; fn: f; cat: ddl",
        ),
        (
            "create table t () inherits (p, s.q)",
            "write; writes: p, s.q, t; cat: ddl",
        ),
        (
            "create table t partition of s.p default",
            "write; writes: s.p, t; cat: ddl",
        ),
        (
            "create temp table t (id int default nextval('s'))",
            "write; writes: s, t; fn: nextval; cat: ddl",
        ),
        (
            "create foreign table t (a int) server x",
            "write; writes: t; cat: ddl",
        ),
        (
            "alter table s.t add column b int, add foreign key (b) references u, replica identity full",
            "write; writes: s.t, u; cat: ddl",
        ),
        (
            "alter table t add column b int references s.u on delete cascade",
            "write; writes: s.u, t; cat: ddl",
        ),
        (
            "create foreign table t (a int) inherits (p) server x",
            "write; writes: p, t; cat: ddl",
        ),
        (
            "alter table t attach partition p default",
            "write; writes: p, t; cat: ddl",
        ),
        (
            "alter table t detach partition s.p",
            "write; writes: s.p, t; cat: ddl",
        ),
        ("alter table t inherit p", "write; writes: p, t; cat: ddl"),
        (
            "alter table t drop column a cascade",
            "write; writes: ?; reads: ?; cat: ddl",
        ),
        (
            "alter table t alter a type int using f(a)",
            "write; writes: t; fn: f; cat: ddl",
        ),
        (
            "alter table s.t rename to u",
            "write; writes: s.t, s.u; cat: ddl",
        ),
        (
            "alter table s.t rename column a to b",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "alter table t rename constraint a to b",
            "write; writes: t; cat: ddl",
        ),
        (
            "alter table s.t set schema u",
            "write; writes: s.t, u.t; cat: ddl",
        ),
        ("alter view v owner to bob", "write; writes: v; cat: ddl"),
        (
            "alter trigger a on t rename to b",
            "write; writes: t; cat: ddl",
        ),
        (
            "alter policy a on t rename to b",
            "write; writes: t; cat: ddl",
        ),
        ("alter sequence s.s restart", "write; writes: s.s; cat: ddl"),
        ("create sequence s", "write; writes: s; cat: ddl"),
        (
            "create view v as table t",
            "write; writes: t, v; reads: t; cat: ddl",
        ),
        (
            "create index on s.t (f(a)) where b",
            "write; writes: s.t; fn: f; cat: ddl",
        ),
        (
            "create index concurrently i on t (a)",
            "write; writes: t; cat: ddl",
        ),
        (
            "create trigger a after insert on s.t execute function f()",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "create constraint trigger a after insert on t from s.u for each row execute function f()",
            "write; writes: s.u, t; cat: ddl",
        ),
        (
            "create rule r as on insert to t do also delete from u",
            "write; writes: t, u; cat: ddl",
        ),
        (
            "create policy p on t using (exists (table u))",
            "write; writes: t; reads: u; cat: ddl",
        ),
        (
            "alter policy p on t using (true)",
            "write; writes: t; cat: ddl",
        ),
        (
            "create statistics s on a, b from s.t",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "drop table a, s.b, d.s.c",
            "write; writes: a, s.b, s.c; cat: ddl",
        ),
        ("drop view v", "write; writes: v; cat: ddl"),
        (
            "drop materialized view if exists v restrict",
            "write; writes: v; cat: ddl",
        ),
        ("drop sequence s", "write; writes: s; cat: ddl"),
        ("drop trigger a on s.t", "write; writes: s.t; cat: ddl"),
        ("drop rule a on t", "write; writes: t; cat: ddl"),
        ("drop policy a on s.t", "write; writes: s.t; cat: ddl"),
        (
            "comment on table s.t is 'x'",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "comment on column s.t.a is 'x'",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "comment on trigger a on s.t is 'x'",
            "write; writes: s.t; cat: ddl",
        ),
        (
            "comment on constraint a on t is 'x'",
            "write; writes: t; cat: ddl",
        ),
        (
            "security label on column t.a is 'x'",
            "write; writes: t; cat: ddl",
        ),
        (
            "grant select (a), update on s.t, u to bob",
            "write; writes: s.t, u; cat: ddl",
        ),
        ("revoke all on t from bob", "write; writes: t; cat: ddl"),
        (
            "grant usage on sequence s to bob",
            "write; writes: s; cat: ddl",
        ),
        (
            "truncate a, s.b restart identity",
            "write; writes: a, s.b; cat: truncate",
        ),
        (
            "vacuum (full) a, s.b",
            "write; writes: a, s.b; cat: maintenance",
        ),
        ("analyze s.t (a)", "write; writes: s.t; cat: maintenance"),
        ("cluster t using i", "write; writes: t; cat: maintenance"),
        (
            "reindex table concurrently s.t",
            "write; writes: s.t; cat: maintenance",
        ),
        (
            "refresh materialized view concurrently s.m",
            "write; writes: s.m; cat: maintenance",
        ),
    ]);
}

/// Statements whose text does not name what they touch, by category.
#[test]
fn t11_statements_that_name_no_table() {
    let kinds: [(&str, &[&str]); 11] = [
        (
            "ddl",
            &[
                "create schema s",
                "create schema s create table t (a int)",
                "drop schema s",
                "alter schema s rename to t",
                "drop table t cascade",
                "drop index i",
                "alter index i rename to j",
                "alter index i set (fillfactor = 50)",
                "alter index i attach partition j",
                "comment on index i is 'x'",
                "comment on schema s is 'x'",
                "drop owned by bob",
                "reassign owned by a to b",
                "grant select on all tables in schema s to bob",
                "grant usage on schema s to bob",
                "alter default privileges grant select on tables to bob",
                "alter table all in tablespace a set tablespace b",
                "create type t as (a int)",
                "create type t as enum ('a')",
                "create type t as range (subtype = int)",
                "alter type t add value 'x'",
                "alter type t add attribute b int",
                "alter type t rename attribute a to b",
                "drop type t",
                "create domain d as int",
                "alter domain d add check (value > 1)",
                "drop domain d",
                "create function f() returns int language sql as 'select 1'",
                "create function f() returns int language sql begin atomic delete from t; end",
                "alter function f() volatile",
                "drop function f()",
                "create procedure p() language sql as ''",
                "create aggregate a (int) (sfunc = f, stype = int)",
                "create operator + (function = f, leftarg = int)",
                "create operator class c for type int using btree as operator 1 <",
                "create operator family f using btree",
                "alter operator family f using btree add operator 1 < (int, int)",
                "alter operator + (int, int) owner to bob",
                "create collation c from \"C\"",
                "alter collation c refresh version",
                "create conversion c for 'UTF8' to 'LATIN1' from f",
                "create cast (int as text) with inout",
                "create transform for int language l (from sql with function f(internal))",
                "create language l",
                "create text search dictionary d (template = simple)",
                "alter text search dictionary d (a = b)",
                "alter text search configuration c drop mapping for word",
                "create access method m type index handler h",
                "create event trigger e on ddl_command_start execute function f()",
                "alter event trigger e disable",
                "create extension x",
                "alter extension x update",
                "alter extension x add table t",
                "drop extension x",
                "create foreign data wrapper w",
                "alter foreign data wrapper w options (a 'b')",
                "create server s foreign data wrapper w",
                "alter server s options (a 'b')",
                "create user mapping for bob server s",
                "alter user mapping for bob server s options (a 'b')",
                "drop user mapping for bob server s",
                "import foreign schema s from server x into y",
                "create publication p for table t",
                "alter publication p add table t",
                "alter table t owner to bob, drop column a cascade",
                "create schema s create table t (a int references u)",
                "create subscription s connection '' publication p",
                "alter subscription s disable",
                "drop subscription s",
                "alter statistics s set statistics 1",
                "alter function f() depends on extension x",
                "drop policy if exists p on a.b.c.d",
            ],
        ),
        (
            "roles",
            &[
                "create role a",
                "alter role a superuser",
                "alter role a set search_path = b",
                "drop role a",
                "grant a to b",
                "alter role a rename to b",
                "comment on role a is 'x'",
            ],
        ),
        (
            "server",
            &[
                "create database d",
                "alter database d set search_path = a",
                "alter database d refresh collation version",
                "alter database d connection limit 1",
                "drop database d",
                "create tablespace t location '/x'",
                "alter tablespace t set (a = 1)",
                "drop tablespace t",
                "alter system set fsync = off",
                "load 'x'",
                "alter database d rename to e",
                "alter database d owner to bob",
                "grant create on database d to bob",
                "comment on database d is 'x'",
                "grant set on parameter a to bob",
            ],
        ),
        (
            "maintenance",
            &[
                "vacuum",
                "analyze",
                "cluster",
                "reindex database d",
                "reindex index i",
                "reindex schema s",
                "checkpoint",
            ],
        ),
        ("truncate", &["truncate a cascade"]),
        ("do", &["do $$ begin delete from t; end $$"]),
        ("prepare-transaction", &["prepare transaction 'x'"]),
        ("prepared-transactions", &["commit prepared 'x'"]),
        ("call", &[]),
        ("lock", &[]),
        ("notify", &[]),
    ];
    for (category, texts) in kinds {
        for text in texts {
            let verdict = of(text);
            assert_ne!(verdict.kind(), "unparsed", "{text}");
            let [statement] = &*verdict.statements else {
                panic!("{text}: {verdict:?}");
            };
            let effects = Effects {
                functions: Box::default(),
                ..statement.effects.clone()
            };
            assert_eq!(
                describe(&effects),
                format!("write; writes: ?; reads: ?; cat: {category}"),
                "{text}"
            );
        }
    }
    check(
        "call s.p(f())",
        "write; writes: ?; reads: ?; fn: f, s.p; cat: call",
    );
    check("notify x", "write; cat: notify");
    assert_eq!(
        describe(&of("selec").statements[0].effects),
        "write; writes: ?; reads: ?; cat: unparsed"
    );
}

/// The table of the module above names what catches it instead.
#[test]
fn t5_what_no_text_shows_is_a_read_here() {
    // `tests/it/fencing/hidden.rs`: PostgreSQL's read-only mode refuses it.
    check(
        "select * from view_that_writes",
        "read; reads: view_that_writes",
    );
    check("select 1 #=# 2, 1::dom", "read");
    check(
        "select my_function_that_writes()",
        "read; fn: my_function_that_writes",
    );
}
