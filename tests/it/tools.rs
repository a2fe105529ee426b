//! Tools of administrators and of migrations, with `pool = "session"` and `"transaction"`: as without a proxy.

use std::path::Path;
use std::process::Command;

use pgpalisade_test_servers::machine::wait_for;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Auth, Postgres, bin};
use pgpalisade_test_servers::programs::{connect_by_environment, stdout};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;

use crate::interpreters::python;

const TOKEN: &str = "-c fencing.token=1";

/// A text beyond ASCII, a large object, a materialized view, a partition and an index that CLUSTER follows.
const TABLES: &str = "CREATE TABLE jobs (id serial PRIMARY KEY, who text);
    INSERT INTO jobs (who) SELECT 'Jörg ' || n FROM generate_series(1, 5000) n; CLUSTER jobs USING jobs_pkey;
    CREATE MATERIALIZED VIEW busy AS SELECT count(*) FROM jobs;
    CREATE TABLE parts (id int) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT;
    SELECT lo_from_bytea(4711, 'large')";

/// Command lines, `DIR` for a directory. What begins with `read` gets no token.
const LINES: &str = "
    createuser someone
    createdb app
    psql -c TABLES app
    pgbench -iq app
    pgbench -n -c 2 -t 20 app
    vacuumdb -z -j 2 app
    vacuumdb --full app
    clusterdb app
    reindexdb --concurrently app
    read pg_dump -Fc -f DIR/custom app
    read pg_dump -Fd -j 2 -f DIR/parallel app
    read pg_dumpall -f DIR/all
    createdb copy
    pg_restore -1 -d copy DIR/custom
    pg_restore --clean -j 2 -d copy DIR/parallel
    psql -f DIR/check copy
    pg_amcheck --install-missing copy
    read pg_amcheck copy
    vacuumlo copy
    dropuser someone
    dropdb --force copy
";

/// Fails unless the copy is one.
const CHECK: &str = "SELECT 1 / (count(*) = 5000 AND min(who) = 'Jörg 1' AND lo_get(4711) = 'large')::int FROM jobs;
    \\copy jobs TO DIR/rows
    \\copy jobs (who) FROM PROGRAM 'cut -f 2 DIR/rows'
    REFRESH MATERIALIZED VIEW busy;
    VACUUM jobs;
    CREATE INDEX CONCURRENTLY who ON jobs (who);
    REINDEX INDEX CONCURRENTLY who;
    CREATE DATABASE made;
    ALTER DATABASE made SET work_mem = '5MB';
    DROP DATABASE made;
";

const MODES: [&str; 2] = ["session", "transaction"];

fn stage(mode: &str) -> Stage {
    Stage::with_flags("", &[("--pool", mode)])
}

fn run(stage: &Stage, mut command: Command, token: &str) -> String {
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.env("PGOPTIONS", token).env("LC_ALL", "C.UTF-8");
    println!("{command:?}");
    stdout(&command.output().unwrap())
}

#[test]
fn administration() {
    for mode in MODES {
        let (stage, dir) = (stage(mode), tempfile::tempdir().unwrap());
        let path = dir.path().display().to_string();
        std::fs::write(dir.path().join("check"), CHECK.replace("DIR", &path)).unwrap();
        for line in LINES.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (line, token) = match line.strip_prefix("read ") {
                Some(line) => (line, ""),
                None => (line, TOKEN),
            };
            let mut words = line.split(' ');
            let mut command = Command::new(bin(words.next().unwrap()));
            command.args(words.map(|word| match word {
                "TABLES" => TABLES.to_owned(),
                word => word.replace("DIR", &path),
            }));
            if line.starts_with("psql") {
                command.args(["-X", "-v", "ON_ERROR_STOP=1"]);
            }
            run(&stage, command, token);
        }
    }
}

const ALEMBIC: [(&str, &str); 3] = [
    ("alembic.ini", "[alembic]\nscript_location = .\n"),
    (
        "env.py",
        "from alembic import context
from sqlalchemy import create_engine
with create_engine('postgresql+psycopg2://').connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
",
    ),
    (
        "versions/1.py",
        "from alembic import op
revision, down_revision = '1', None
def upgrade():
    op.execute('CREATE TABLE jobs (who text)')
    with op.get_context().autocommit_block():
        op.execute('CREATE INDEX CONCURRENTLY who ON jobs (who)')
def downgrade():
    op.drop_table('jobs')
",
    ),
];

const DJANGO: [(&str, &str); 1] = [(
    "program",
    "import django
from django.conf import settings
from django.core.management import call_command
server = {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'postgres'}
settings.configure(DATABASES={'default': server}, INSTALLED_APPS=['django.contrib.contenttypes', 'django.contrib.auth'])
django.setup()
for target in [], ['auth', '0005'], ['auth', 'zero'], []:
    call_command('migrate', *target, verbosity=0)
",
)];

const SQITCH: [(&str, &str); 5] = [
    ("sqitch.conf", "[core]\n\tengine = pg\n"),
    (
        "sqitch.plan",
        "%syntax-version=1.0.0\n%project=jobs\n\njobs 2026-01-01T00:00:00Z a <a@example.org> # jobs\n",
    ),
    ("deploy/jobs.sql", "BEGIN; CREATE TABLE jobs (id int); END;"),
    ("revert/jobs.sql", "BEGIN; DROP TABLE jobs; COMMIT;"),
    ("verify/jobs.sql", "BEGIN; TABLE jobs; ROLLBACK;"),
];

/// Writes a tool's files, runs its command lines in both modes, and expects that table at the end.
fn migrate(files: &[(&str, &str)], lines: &[&str], table: &str) {
    for mode in MODES {
        let (stage, dir) = (stage(mode), tempfile::tempdir().unwrap());
        for (name, text) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        for line in lines {
            let mut words = line.split(' ');
            let mut command = match words.next().unwrap() {
                "python" => python(Path::new("program")),
                program => Command::new(program),
            };
            command.args(words).current_dir(dir.path());
            run(&stage, command, TOKEN);
        }
        let exists = format!("SELECT to_regclass('{table}') IS NOT NULL");
        assert_eq!(stage.value(&exists), "t", "{mode}");
    }
}

#[test]
fn alembic_migrations() {
    let lines = [
        "alembic upgrade head",
        "alembic current",
        "alembic downgrade base",
        "alembic upgrade head",
    ];
    migrate(&ALEMBIC, &lines, "who");
}

#[test]
fn django_migrations() {
    migrate(&DJANGO, &["python"], "auth_user");
}

#[test]
fn sqitch_migrations() {
    let lines = [
        "sqitch deploy --verify db:pg:",
        "sqitch verify db:pg:",
        "sqitch revert -y db:pg:",
        "sqitch deploy db:pg:",
        "sqitch status db:pg:",
    ];
    migrate(&SQITCH, &lines, "sqitch.changes");
}

/// The subscriber reaches its publisher through a proxy whose policy allows replication.
#[test]
fn logical_replication() {
    let policy = PolicyFile::new("[defaults]\nallow = [\"replication\"]\n");
    for mode in MODES {
        let publisher = Postgres::start_with(Auth::Trust, &["wal_level=logical"]);
        let options = Options::new(&publisher).flag("--pool", mode);
        let proxy = Proxy::start_with(options.policy(&policy));
        let (stage, subscriber) = (
            Stage {
                proxy,
                postgres: publisher,
            },
            Postgres::start(),
        );
        let table = "CREATE TABLE jobs (id int PRIMARY KEY)";
        let mut leader = stage.leader("1");
        for sql in [
            table,
            "INSERT INTO jobs VALUES (1)",
            "CREATE PUBLICATION jobs FOR TABLE jobs",
        ] {
            leader.ok(sql);
        }
        subscriber.sql(table);
        subscriber.sql(&format!(
            "CREATE SUBSCRIPTION jobs CONNECTION 'host=127.0.0.1 port={} user=postgres' PUBLICATION jobs",
            stage.proxy.endpoint().port()
        ));
        leader.ok("INSERT INTO jobs VALUES (2)");
        wait_for("both rows", || {
            (subscriber.value("SELECT count(*) FROM jobs") == "2").then_some(())
        });
        subscriber.sql("DROP SUBSCRIPTION jobs");
    }
}
