//! Functions that tell about the session and nothing else: a call of them reads no data.

use crate::effects::ObjectName;

/// The session's part of <https://www.postgresql.org/docs/current/functions-info.html>, the clock, and the settings.
/// `set_config` is among them: SET is no read either, and a session may declare its token by it.
const ABOUT_THE_SESSION: [&str; 34] = [
    "clock_timestamp",
    "current_catalog",
    "current_database",
    "current_query",
    "current_role",
    "current_schema",
    "current_schemas",
    "current_setting",
    "current_user",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_addr",
    "inet_server_port",
    "now",
    "pg_backend_pid",
    "pg_blocking_pids",
    "pg_client_encoding",
    "pg_conf_load_time",
    "pg_is_in_recovery",
    "pg_is_other_temp_schema",
    "pg_jit_available",
    "pg_listening_channels",
    "pg_my_temp_schema",
    "pg_postmaster_start_time",
    "pg_trigger_depth",
    "session_user",
    "set_config",
    "statement_timestamp",
    "system_user",
    "timeofday",
    "transaction_timestamp",
    "user",
    "version",
    "pg_notification_queue_usage",
];

/// Whether a function only tells about the session.
pub(super) fn tells_about_session(function: &ObjectName) -> bool {
    let schema = function.schema.as_deref().unwrap_or("pg_catalog");
    schema == "pg_catalog" && ABOUT_THE_SESSION.contains(&&*function.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_postgresqls_own_are_known() {
        let tells = |schema: Option<&str>, name: &str| {
            tells_about_session(&ObjectName {
                schema: schema.map(Into::into),
                name: name.into(),
            })
        };
        assert!(tells(None, "current_setting"));
        assert!(tells(Some("pg_catalog"), "version"));
        assert!(!tells(Some("public"), "version"));
        assert!(!tells(None, "next_job"));
    }
}
