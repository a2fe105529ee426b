//! Results of `check` for the login methods.

use pgpalisade_test_servers::postgres::Auth;

use super::{Settings, fresh_store};
use crate::logins::Stage;
use crate::tls::upstream;

#[test]
fn which_of_the_three_works() {
    let stage = Stage::new(Auth::Scram);
    let postgres = &stage.postgres;
    let (_dir, store) = fresh_store();
    let file = stage.write_users("app");
    let pair = stage.authority.issue_local("proxy");
    let in_the_clear = Settings::new(postgres, &store)
        .upstream(upstream(postgres, "127.0.0.1", "sslmode=require"))
        // A role that needs a password, with few rights.
        .control(format!(
            "host=127.0.0.1 port={} user=app password='corréct \\'horse\\'' dbname=postgres",
            postgres.port()
        ));
    let with_tls = in_the_clear
        .clone()
        .flag("--tls-mode=require")
        .flag(&format!("--tls-certificate={}", pair.certificate.display()))
        .flag(&format!("--tls-key={}", pair.key.display()));
    with_tls.check().finds(
        "warn logins: PostgreSQL asks role app for SCRAM: auth = relay works for clients without TLS or with \
         channel_binding=disable only, scram works, password works -> set auth = \"scram\" or \"password\"",
    );
    let finds = |flags: &[&str], row: &str| {
        let settings = flags
            .iter()
            .fold(with_tls.clone(), |settings, flag| settings.flag(flag));
        settings.check().finds(row);
    };
    in_the_clear.check().finds(
        "ok logins: auth = relay works, scram works, password does not work: tls.mode is off",
    );
    finds(&["--auth=password"], "ok logins: password works");
    let file = format!("--auth-file={file}");
    finds(&["--auth=scram", &file], "ok logins: scram works");
    finds(
        &["--auth=scram", "--auth-file=/nowhere"],
        "fail logins: the users file: cannot read /nowhere -> correct auth_file",
    );
    let query = "--auth-query=SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1";
    finds(
        &["--auth=scram", query],
        "fail logins: permission denied for table pg_authid -> auth_query",
    );
}
