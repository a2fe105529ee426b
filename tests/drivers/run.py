#!/usr/bin/python3
"""Runs the suites of the drivers through the proxy, with pool = "session" and "transaction", and writes the tables of
docs/drivers.md.

    tests/drivers/run.py [DRIVER..]             all, or these; the tables keep the others' last results
    tests/drivers/run.py --unfenced [DRIVER..]  at PostgreSQL itself: what only the fence refuses must be FAILED

PGPALISADE_BIN is the binary of the proxy [target/debug/pgpalisade], ONLY the names of scenarios.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORK = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "drivers")
RESULTS = os.path.join(WORK, "results.json")
PAGE = os.path.join(ROOT, "docs/drivers.md")
PROXY = os.environ.get("PGPALISADE_BIN", os.path.join(ROOT, "target/debug/pgpalisade"))
BIN = os.environ.get("PG_BIN") or max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda dir: int(dir.split("/")[4]))

PYTHON = os.path.join(WORK, "venv/bin/python")
JARS = ":".join(f"/usr/share/java/{jar}.jar" for jar in ("postgresql", "HikariCP", "slf4j-api", "slf4j-nop"))

# A table of the page | its column | command
SUITES = [
    ("Python", "psycopg", [PYTHON, "python-psycopg.py"]),
    ("Python", "psycopg-async", [PYTHON, "python-psycopg-async.py"]),
    ("Python", "psycopg2", [PYTHON, "python-psycopg2.py"]),
    ("Python", "asyncpg", [PYTHON, "python-asyncpg.py"]),
    ("Python", "SQLAlchemy", [PYTHON, "python-sqlalchemy.py"]),
    ("Python", "Django", [PYTHON, "python-django.py"]),
    ("others", "psql", ["sh", "psql.sh"]),
    ("others", "psqlODBC", [PYTHON, "odbc-pyodbc.py"]),
    ("others", "node-postgres", ["node", "node-pg.js"]),
    ("others", "postgres.js", ["node", "node-postgres.js"]),
    ("others", "pgjdbc", ["java", "-cp", JARS, "java-pgjdbc.java"]),
    ("Rust, Go", "tokio-postgres", [os.path.join(WORK, "cargo/debug/rust-tokio-postgres")]),
    ("Rust, Go", "sqlx", [os.path.join(WORK, "cargo/debug/rust-sqlx")]),
    ("Rust, Go", "diesel", [os.path.join(WORK, "cargo/debug/rust-diesel")]),
    ("Rust, Go", "pgx", [os.path.join(WORK, "go-pgx")]),
    ("Rust, Go", "lib/pq", [os.path.join(WORK, "go-pq")]),
    ("Ruby, Perl, PHP", "pg", ["ruby", "ruby-pg.rb"]),
    ("Ruby, Perl, PHP", "ActiveRecord", ["ruby", "ruby-activerecord.rb"]),
    ("Ruby, Perl, PHP", "DBD::Pg", ["perl", "perl-dbd-pg.pl"]),
    ("Ruby, Perl, PHP", "PDO", ["php", "php-pdo.php"]),
]

LATE = """CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM pg_sleep(5); INSERT INTO jobs SELECT NEW.*; RETURN NULL; END$$;
    CREATE TRIGGER late BEFORE INSERT ON late FOR EACH ROW EXECUTE FUNCTION late()"""

BEGIN, END = "<!-- begin: tests/drivers/run.py -->", "<!-- end -->"

# Its name | what it shows | whether PostgreSQL alone must fail it
SCENARIOS = [
    ("shares", "shares its connection", False),
    ("string", "token in the connection string", False),
    ("set", "SET after connecting", False),
    ("local", "SET LOCAL", True),
    ("old-string", "stale: connecting", True),
    ("old-set", "stale: SET", True),
    ("old-local", "stale: SET LOCAL", True),
    ("idle", "takeover: idle", True),
    ("transaction", "takeover: in a transaction", True),
    ("statement", "takeover: in a statement", True),
    ("batch", "takeover: in a batch", True),
    ("copy", "takeover: in COPY", True),
    ("autocommit", "takeover: autocommit off", True),
    ("fields", "SQLSTATE, DETAIL, HINT", True),
    ("pool", "pool after a takeover", True),
    ("prepared", "prepared after a takeover", True),
    ("cancel", "cancel", False),
    ("notify", "LISTEN, NOTIFY", False),
    ("objects", "large objects", False),
    ("cursor", "cursor", False),
    ("binary", "binary formats", False),
    ("attrs", "target_session_attrs", False),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def as_postgres():
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"] if os.geteuid() == 0 else []


def sql(port, text, user="postgres", database="app"):
    command = ["psql", "-XqAt", "-h", "127.0.0.1", "-p", str(port), "-U", user, "-c", text, database]
    environment = dict(os.environ, PGPASSWORD="pencil")
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return run.stdout.split("\n")[:-1]


@contextlib.contextmanager
def server(port, log, command):
    with open(log, "wb") as output:
        # The proxy would read variables of its own as settings.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PGPALISADE_")}
        child = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
    try:
        for _ in range(300):
            is_ready = [f"{BIN}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            if subprocess.run(is_ready).returncode == 0 or child.poll() is not None:
                break
            time.sleep(0.1)
        else:
            child.kill()
        if child.poll() is not None:
            sys.exit(open(log).read())
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(20)


@contextlib.contextmanager
def postgres(dir):
    data, port = os.path.join(dir, "data"), free_port()
    os.mkdir(data)
    if os.geteuid() == 0:
        shutil.chown(data, "postgres", "postgres")
    initdb = [*as_postgres(), f"{BIN}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(data, "pg_hba.conf"), "w") as file:
        file.write("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    settings = f"port={port} fsync=off listen_addresses=127.0.0.1 unix_socket_directories= max_connections=200"
    command = [*as_postgres(), f"{BIN}/postgres", "-D", data]
    command += [part for setting in settings.split() for part in ("-c", setting)]
    with server(port, os.path.join(dir, "postgres.log"), command):
        sql(port, "CREATE ROLE app LOGIN PASSWORD 'pencil'", database="postgres")
        sql(port, "CREATE DATABASE app OWNER app", database="postgres")
        sql(port, "CREATE TABLE jobs (scenario text, what text)", "app")
        # Rows of `late` come into `jobs`, but slowly.
        sql(port, "CREATE TABLE late (LIKE jobs)", "app")
        sql(port, LATE, "app")
        yield port


@contextlib.contextmanager
def proxy(dir, postgres_port, mode):
    port, http = free_port(), f"127.0.0.1:{free_port()}"
    command = [PROXY, "serve", "--listen", f"127.0.0.1:{port}", "--upstream", f"postgres://127.0.0.1:{postgres_port}"]
    command += ["--control", "user=postgres dbname=postgres", "--authority", f"embedded:{dir}/authority"]
    command += ["--pool", mode, "--shutdown-grace", "1s", "--http", http]
    if mode == "transaction":
        query = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1"
        command += ["--auth", "scram", "--auth-query", query]
    with server(port, os.path.join(dir, f"proxy-{mode}.log"), command):
        yield port, http


def packages():
    subprocess.run([os.path.join(ROOT, "scripts/install-packages"), "drivers"], check=True)
    os.makedirs(WORK, exist_ok=True)
    if not os.path.exists(PYTHON):
        subprocess.run(["/usr/bin/python3", "-m", "venv", os.path.join(WORK, "venv")], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "-r", os.path.join(HERE, "requirements.txt")], check=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(os.path.join(HERE, file), WORK)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], check=True, cwd=WORK)
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), HERE)
    cargo = ["cargo", "build", "--quiet", "--manifest-path", os.path.join(HERE, "Cargo.toml")]
    subprocess.run([*cargo, "--target-dir", os.path.join(WORK, "cargo")], check=True)
    # Debian's packages of Go are sources, without modules.
    go = dict(os.environ, GO111MODULE="off", GOPATH="/usr/share/gocode", GOCACHE=os.path.join(WORK, "go"))
    for suite in ("go-pgx", "go-pq"):
        command = ["go", "build", "-o", os.path.join(WORK, suite), suite + ".go", "suite.go"]
        subprocess.run(command, check=True, cwd=HERE, env=go)


def run(suite, port, postgres_port, proxy_port, http, mode):
    """What a suite says of each scenario, and the database of what it says."""
    sql(postgres_port, "TRUNCATE jobs", "app")
    environment = dict(
        os.environ, PGHOST="127.0.0.1", PGPORT=str(port), PGUSER="app", PGPASSWORD="pencil", PGDATABASE="app",
        POSTGRES_PORT=str(postgres_port), PROXY_PORT=str(proxy_port), METRICS=http, MODE=mode,
        TAKEOVER=os.path.join(HERE, "takeover"), WORK=WORK, NODE_PATH=os.path.join(WORK, "node_modules"),
        PYTHONDONTWRITEBYTECODE="1",
    )
    only = os.environ.get("ONLY", "").split()
    log = os.path.join(WORK, f"{suite[1].replace('/', '-')}.{mode}.log")
    with open(log, "wb") as errors:
        child = subprocess.Popen(
            [*suite[2], *only], cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=errors,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )
        try:
            output = child.communicate(timeout=300)[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output = child.communicate()[0]
    said = dict(line.split(": ", 1) for line in output.decode(errors="replace").split("\n") if ": " in line)
    rows = sql(postgres_port, "SELECT DISTINCT scenario || ' ' || what FROM jobs", "app")
    cells = {}
    for name, _, fenced in SCENARIOS:
        cell = said.get(name, "FAILED the suite said nothing")
        if only and name not in only:
            continue
        if cell.split()[0] not in ("FAILED", "n/a"):
            if f"{name} lost" in rows:
                cell = "FAILED what had to be lost is in the table"
            elif f"{name} kept" not in rows:
                cell = "FAILED what had to be kept is not in the table"
            elif mode == "unfenced" and fenced:
                cell = f"CANNOT FAIL says {cell} without a fence"
        print(f"{suite[1]}, {mode}: {name}: {cell}", flush=True)
        cells[name] = cell
    if any("said nothing" in cell for cell in cells.values()):
        print(open(log).read()[-2000:])
    return said.get("version", ""), cells


def main():
    arguments = sys.argv[1:]
    modes = ["session", "transaction"]
    if arguments[:1] == ["--unfenced"]:
        del arguments[0]
        modes = ["unfenced"]
    suites = [suite for suite in SUITES if not arguments or suite[1] in arguments]
    packages()
    results = json.load(open(RESULTS)) if os.path.exists(RESULTS) and "unfenced" not in modes else {}
    with tempfile.TemporaryDirectory() as dir:
        os.chmod(dir, 0o755)
        with postgres(dir) as postgres_port:
            for mode in modes:
                with proxy(dir, postgres_port, mode.replace("unfenced", "session")) as (proxy_port, http):
                    port = postgres_port if mode == "unfenced" else proxy_port
                    for suite in suites:
                        version, cells = run(suite, port, postgres_port, proxy_port, http, mode)
                        result = results.setdefault(suite[1], {})
                        result["version"] = version
                        result.setdefault(mode, {}).update(cells)
    if "unfenced" in modes:
        sys.exit("some scenarios cannot fail" if "CANNOT" in json.dumps(results) else 0)
    with open(RESULTS, "w") as file:
        json.dump(results, file, indent=1)
    failed = write_page(results)
    sys.exit(f"{failed} cells failed" if failed else 0)


def cell(result, name):
    """In session and transaction mode; once if they are equal."""
    words = []
    for mode in ("transaction",) if name == "shares" else ("session", "transaction"):
        said = result.get(mode, {}).get(name, "?")
        words.append("-" if said.startswith("n/a") else "**FAILED**" if said.startswith("FAILED") else said)
    return " / ".join(dict.fromkeys(words))


def write_page(results):
    """Puts the tables between the marks of the page, and returns how many cells failed."""
    missing = [suite[1] for suite in SUITES if suite[1] not in results]
    if missing:
        print("the page stays: no results yet of", *missing)
        return 0
    lines = [BEGIN, ""]
    for group in dict.fromkeys(suite[0] for suite in SUITES):
        names = [suite[1] for suite in SUITES if suite[0] == group]
        lines += [f"| {group} | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
        for name, title, _ in SCENARIOS:
            lines.append(f"| {title} | " + " | ".join(cell(results[driver], name) for driver in names) + " |")
        lines.append("")
    versions = "Tried: " + "; ".join(dict.fromkeys(results[suite[1]]["version"] for suite in SUITES)) + "."
    lines += [*textwrap.wrap(versions, 120, break_long_words=False, break_on_hyphens=False), "", END]
    with open(PAGE) as file:
        before, rest = file.read().split(BEGIN)
    with open(PAGE, "w") as file:
        file.write(before + "\n".join(lines) + rest.split(END)[1])
    return sum(line.count("FAILED") for line in lines)


if __name__ == "__main__":
    main()
