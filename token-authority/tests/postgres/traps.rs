//! Only the store's own code runs as its role.

use pgpalisade_authority::postgres::{Options, read};
use pgpalisade_authority::{Authority, AuthorityError, Postgres};
use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::wire::Wire;

use crate::stage::{CLUSTER, Server, connect, declare};

const TRAPS: &str = "CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO PUBLIC;
    CREATE FUNCTION traps.spring() RETURNS int LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE LOG 'sprung as %', current_user; RETURN 0; END $$;
    CREATE FUNCTION traps.fire() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM traps.spring(); RETURN NEW; END $$";

const VIEW: &str = "CREATE VIEW pgpalisade_authority.store AS SELECT 6 AS format, \
    decode(repeat('00', 16 + traps.spring()), 'hex') AS identity";
const FUNCTION: &str = "CREATE FUNCTION pgpalisade_authority.begin_step(a int, b bytea, c bigint, d bigint) \
    RETURNS void LANGUAGE sql AS 'SELECT traps.spring()'";

fn session(server: &Server, user: &str, database: &str) -> Wire {
    Wire::login(&server.socket(), &[("user", user), ("database", database)])
}

fn options(server: &Server, database: &str) -> Options {
    let dsn = server.admin_dsn();
    let dsn = dsn.replace("dbname=postgres", &format!("dbname={database}"));
    dsn.parse().unwrap()
}

/// Each use checks the owners: a step, a read, and a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_attached_later_is_not_run() {
    let fire = "EXECUTE FUNCTION traps.fire()";
    for (given, made, says) in [
        (
            "GRANT TRIGGER ON pgpalisade_authority.marks TO mallory",
            format!("CREATE TRIGGER fire BEFORE INSERT ON pgpalisade_authority.marks {fire}"),
            "trigger fire of pgpalisade_authority.marks (role mallory)",
        ),
        (
            "GRANT TRIGGER ON pgpalisade_authority.store TO mallory",
            format!("CREATE TRIGGER fire BEFORE UPDATE ON pgpalisade_authority.store {fire}"),
            "trigger fire of pgpalisade_authority.store (role mallory)",
        ),
        (
            "ALTER TABLE pgpalisade_authority.connections OWNER TO mallory",
            "CREATE RULE also AS ON UPDATE TO pgpalisade_authority.connections \
             DO ALSO SELECT traps.spring()"
                .to_owned(),
            "rule also of pgpalisade_authority.connections (role mallory)",
        ),
        (
            "ALTER FUNCTION pgpalisade_authority.begin_step OWNER TO mallory",
            FUNCTION
                .replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
                .replace(
                    "(a int, b bytea, c bigint, d bigint)",
                    "(a_format int, a_identity bytea, a_connection bigint, a_step bigint)",
                ),
            "function pgpalisade_authority.begin_step(integer,bytea,bigint,bigint) (role mallory)",
        ),
        (
            "DROP SCHEMA pgpalisade_authority CASCADE",
            format!("CREATE SCHEMA pgpalisade_authority; {VIEW}"),
            "schema pgpalisade_authority (role mallory)",
        ),
    ] {
        let server = Server::start();
        let store = connect(&server).await;
        store.enrol(CLUSTER).await.unwrap();
        declare(&store, "s", 1, 1).await.unwrap();
        server.sql("CREATE ROLE mallory LOGIN; GRANT CREATE ON DATABASE postgres TO mallory");
        server.sql("GRANT USAGE, CREATE ON SCHEMA pgpalisade_authority TO mallory");
        let mut mallory = session(&server, "mallory", "postgres");
        mallory.ok(TRAPS);
        server.sql(given);
        mallory.ok(&made);
        let refused = [
            declare(&store, "new", 2, 1).await.map(drop),
            store.enrol(CLUSTER).await.map(drop),
            store.recover(None, CLUSTER, &[]).await.map(drop),
            store.marks().await.map(drop),
        ];
        for answer in refused {
            let error = answer.expect_err(says);
            assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
        let error = Postgres::connect(&options(&server, "postgres")).await;
        let error = error.expect_err("must not open");
        assert!(error.to_string().contains(says), "{error}");
        let looked = read(&options(&server, "postgres")).await;
        assert_says(&looked.expect_err("must not be read").to_string(), says);
        assert!(!server.log().contains("sprung as postgres"));
    }
}
