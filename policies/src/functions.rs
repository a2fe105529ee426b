//! Functions that count as writes, by name, each with the reason.
//!
//! PostgreSQL lets them run in a read-only transaction although they change something beyond it, or run SQL that the
//! proxy does not see. Functions that change tables in the ordinary way need no entry: PostgreSQL refuses them to a
//! read-only session. The list was made from the volatile functions of `pg_proc` (PostgreSQL 14 to 18) and from
//! contrib. Among others, these count as reads: advisory locks,
//! `pg_export_snapshot`, `currval`, `setseed`, `pg_sleep`, `pg_read_file`, `pg_logical_slot_peek_*`,
//! `pg_stat_clear_snapshot`, `pg_log_backend_memory_contexts`.
//! <https://www.postgresql.org/docs/current/functions-admin.html>

use Pattern::{Name, Prefix};

use crate::effects::Category;
use crate::object_name::ObjectName;

enum Pattern {
    Name(&'static str),
    Prefix(&'static str),
}

/// A function that counts as a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritingFunction {
    pub(crate) why: &'static str,
    pub(crate) reach: Reach,
}

/// Tables that a call may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// No table. The call has another effect, perhaps that of a category of statements.
    NoTable(Option<Category>),
    /// The sequence that its first argument names.
    Sequence,
    /// Any table.
    Anything,
    /// Whatever the SQL does that is passed to it.
    Text,
}

const fn anything(why: &'static str) -> WritingFunction {
    WritingFunction {
        why,
        reach: Reach::Anything,
    }
}

const SEQUENCE: WritingFunction = WritingFunction {
    why: "it moves a sequence, which no rollback undoes",
    reach: Reach::Sequence,
};
const XID: WritingFunction = WritingFunction {
    why: "it assigns a transaction id",
    reach: Reach::NoTable(None),
};
const ELSEWHERE: WritingFunction =
    anything("it runs SQL in another session, outside read-only mode");
const TEXT: WritingFunction = WritingFunction {
    why: "it runs SQL that is passed to it as text",
    reach: Reach::Text,
};
const LARGE_OBJECT: WritingFunction =
    anything("it changes large objects, which read-only mode allows up to PostgreSQL 15");
const INDEX: WritingFunction = anything("it changes an index");
const SLOT: WritingFunction = anything("it changes a replication slot");
const ORIGIN: WritingFunction = anything("it changes replication origins");
const WAL: WritingFunction = anything("it writes to the write-ahead log");
const SERVER: WritingFunction = anything("it acts on the whole server");
const SESSIONS: WritingFunction = anything("it interrupts other sessions");
const NOTIFY: WritingFunction = WritingFunction {
    why: "it sends a notification",
    reach: Reach::NoTable(Some(Category::Notify)),
};
const STATISTICS: WritingFunction = anything("it changes the server's statistics");
const FILES: WritingFunction = anything("it changes files on the server");
const CATALOG: WritingFunction = anything("it changes the system catalog");
const STORAGE: WritingFunction = anything("it changes stored rows directly");

const WRITERS: &[(Pattern, WritingFunction)] = &[
    (Name("nextval"), SEQUENCE),
    (Name("setval"), SEQUENCE),
    (Name("txid_current"), XID),
    (Name("pg_current_xact_id"), XID),
    // dblink, dblink_exec, dblink_send_query, dblink_open, ...
    (Prefix("dblink"), ELSEWHERE),
    (Prefix("pg_background_"), ELSEWHERE),
    (Prefix("query_to_xml"), TEXT),
    (Prefix("cursor_to_xml"), TEXT),
    (Prefix("table_to_xml"), TEXT),
    (Prefix("schema_to_xml"), TEXT),
    (Prefix("database_to_xml"), TEXT),
    (Name("ts_stat"), TEXT),
    (Name("ts_rewrite"), TEXT),
    // tablefunc and xml2
    (Prefix("crosstab"), TEXT),
    (Name("connectby"), TEXT),
    (Name("xpath_table"), TEXT),
    // Its mode is a number that may be computed.
    (Name("lo_open"), LARGE_OBJECT),
    (Prefix("lo_creat"), LARGE_OBJECT),
    (Prefix("lo_truncate"), LARGE_OBJECT),
    (Name("lo_from_bytea"), LARGE_OBJECT),
    (Name("lo_import"), LARGE_OBJECT),
    (Name("lo_export"), FILES),
    (Name("lo_put"), LARGE_OBJECT),
    (Name("lo_unlink"), LARGE_OBJECT),
    (Name("lo_manage"), LARGE_OBJECT),
    (Name("lowrite"), LARGE_OBJECT),
    (Prefix("brin_summarize_"), INDEX),
    (Prefix("brin_desummarize_"), INDEX),
    (Name("gin_clean_pending_list"), INDEX),
    (Name("pg_create_physical_replication_slot"), SLOT),
    (Name("pg_create_logical_replication_slot"), SLOT),
    (Name("pg_copy_physical_replication_slot"), SLOT),
    (Name("pg_copy_logical_replication_slot"), SLOT),
    (Name("pg_drop_replication_slot"), SLOT),
    (Name("pg_replication_slot_advance"), SLOT),
    (Name("pg_sync_replication_slots"), SLOT),
    // Changes taken from a slot are gone; peeking leaves them.
    (Name("pg_logical_slot_get_changes"), SLOT),
    (Name("pg_logical_slot_get_binary_changes"), SLOT),
    (Prefix("pg_replication_origin_"), ORIGIN),
    (Name("pg_logical_emit_message"), WAL),
    (Name("pg_create_restore_point"), WAL),
    (Name("pg_switch_wal"), WAL),
    (Name("pg_log_standby_snapshot"), WAL),
    (Name("pg_backup_start"), WAL),
    (Name("pg_backup_stop"), WAL),
    (Name("pg_start_backup"), WAL),
    (Name("pg_stop_backup"), WAL),
    (Name("pg_promote"), SERVER),
    (Name("pg_wal_replay_pause"), SERVER),
    (Name("pg_wal_replay_resume"), SERVER),
    (Name("pg_reload_conf"), SERVER),
    (Prefix("pg_rotate_logfile"), SERVER),
    // adminpack 1.0
    (Name("pg_logfile_rotate"), SERVER),
    (Name("pg_stop_making_pinned_objects"), SERVER),
    (Prefix("binary_upgrade_"), SERVER),
    // A deposed leader must not end the sessions of its successor.
    (Name("pg_terminate_backend"), SESSIONS),
    (Name("pg_cancel_backend"), SESSIONS),
    (Name("pg_notify"), NOTIFY),
    (Prefix("pg_stat_reset"), STATISTICS),
    (Prefix("pg_stat_statements_reset"), STATISTICS),
    (Prefix("pg_restore_"), STATISTICS),
    (Prefix("pg_clear_"), STATISTICS),
    // adminpack
    (Prefix("pg_file_"), FILES),
    // pg_prewarm: writes its list of blocks, or starts a process that does.
    (Prefix("autoprewarm_"), FILES),
    (Prefix("pg_buffercache_evict"), SERVER),
    (Name("pg_import_system_collations"), CATALOG),
    (Prefix("sepgsql_"), CATALOG),
    (Name("pg_nextoid"), CATALOG),
    (Name("pg_extension_config_dump"), CATALOG),
    // pg_surgery and pg_visibility
    (Prefix("heap_force_"), STORAGE),
    (Name("pg_truncate_visibility_map"), STORAGE),
];

/// Whether the protocol's FunctionCall only reads large objects, as drivers and pg_dump do: by its OID, the same in
/// every version, a function of PostgreSQL that runs nothing else.
#[must_use]
pub fn reads_large_objects(function: u32, arguments: &[&[u8]]) -> bool {
    const INV_READ: &[u8] = &0x0004_0000_u32.to_be_bytes();
    match function {
        // lo_open
        952 => matches!(arguments, [_, mode] if *mode == INV_READ),
        // lo_close, loread, lo_lseek, lo_tell, lo_lseek64, lo_tell64
        953 | 954 | 956 | 958 | 3170 | 3171 => true,
        _ => false,
    }
}

pub(crate) const SET_CONFIG: &str = "set_config";

/// Whether the first argument of its calls matters.
pub(crate) fn looks_at_argument(function: &ObjectName) -> bool {
    &*function.name == SET_CONFIG
        || writer(&function.name).is_some_and(|writer| matches!(writer.reach, Reach::Sequence))
}

/// Start of the name of each function whose first argument matters.
#[cfg(test)]
pub(crate) fn names_that_look_at_argument() -> impl Iterator<Item = &'static str> {
    let sequence = WRITERS
        .iter()
        .filter(|(_, writer)| matches!(writer.reach, Reach::Sequence));
    let names = sequence.map(|(pattern, _)| match pattern {
        Name(name) | Prefix(name) => *name,
    });
    names.chain([SET_CONFIG])
}

/// The entry of a function that counts as a write. Takes the name as PostgreSQL parses it, without its schema:
/// extensions live in any schema. A user's function with such a name costs a refused read.
pub(crate) fn writer(name: &str) -> Option<&'static WritingFunction> {
    WRITERS.iter().find_map(|(pattern, writer)| {
        let hit = match pattern {
            Name(known) => name == *known,
            Prefix(known) => name.starts_with(known),
        };
        hit.then_some(writer)
    })
}
