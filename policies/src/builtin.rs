//! PostgreSQL's own functions that read no table and change nothing about the session. The list is short on purpose:
//! a function that is not listed might do either.

use crate::object_name::ObjectName;

/// Functions about the session <https://www.postgresql.org/docs/current/functions-info.html>, clock and settings.
/// Includes `set_config`: SET is no read either, and a session may declare its token with it.
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

/// Functions of ordinary queries, and of the catalog queries of drivers, on values that they already have:
/// <https://www.postgresql.org/docs/current/functions.html>
const ABOUT_VALUES: [&str; 62] = [
    "abs",
    "age",
    "array_agg",
    "array_length",
    "array_lower",
    "array_position",
    "array_to_string",
    "array_upper",
    "avg",
    "bool_and",
    "bool_or",
    "btrim",
    "cardinality",
    "ceil",
    "col_description",
    "concat",
    "count",
    "date_part",
    "date_trunc",
    "extract",
    "floor",
    "format",
    "format_type",
    "gen_random_uuid",
    "generate_series",
    "generate_subscripts",
    "has_schema_privilege",
    "has_table_privilege",
    "json_agg",
    "json_build_object",
    "jsonb_agg",
    "jsonb_build_object",
    "length",
    "lower",
    "ltrim",
    "max",
    "min",
    "obj_description",
    "pg_encoding_to_char",
    "pg_function_is_visible",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_indexdef",
    "pg_get_userbyid",
    "pg_table_is_visible",
    "pg_type_is_visible",
    "position",
    "quote_ident",
    "quote_literal",
    "random",
    "replace",
    "round",
    "row_number",
    "row_to_json",
    "rtrim",
    "split_part",
    "string_agg",
    "substring",
    "sum",
    "to_char",
    "unnest",
    "upper",
];

/// Whether a function reads no table and changes nothing about the session. A user's function of the same name cannot
/// be told apart if the text names no schema.
pub(crate) fn is_about_values(function: &ObjectName) -> bool {
    let schema = function.schema.as_deref().unwrap_or("pg_catalog");
    let name = &*function.name;
    schema == "pg_catalog" && (ABOUT_THE_SESSION.contains(&name) || ABOUT_VALUES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_postgresqls_own_are_known() {
        let tells = |schema: Option<&str>, name: &str| {
            is_about_values(&ObjectName {
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
