//! Texts that are not UTF-8, or whose encoding is not known yet: what stands in a constant does not matter.

use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, pretty};

use super::{SETUP, assert_passes, assert_refused};

#[test]
fn constants_in_another_encoding_are_read() {
    let policy = "[defaults]\nwrites = \"allow\"\n[scope.scheduler]\ntables = [\"jobs.*\"]\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    stage.sql("CREATE TABLE names (name text)");
    for encoding in ["LATIN1", "WIN1252", "KOI8R", "EUC_JP", "SQL_ASCII"] {
        let mut wire = stage.plain();
        wire.ok(&format!("SET client_encoding = '{encoding}'"));
        assert_eq!(wire.rows("SELECT 'é', 1"), [["é", "1"]], "{encoding}");
        assert_passes(&wire.extended("INSERT INTO public.names VALUES ('it''s é')"));
        // A name may be that of a table of the scope.
        let answer = pretty(&wire.fails("INSERT INTO é VALUES ('x')", "PF002"));
        assert_says(&answer, "it has characters beyond ASCII");
        assert_refused(&mut wire, "INSERT INTO jobs.queue VALUES (1, 'é')", "PF002");
    }
}

/// A function of the same pipeline may have changed the encoding.
#[test]
fn constants_in_a_pipeline_are_read() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let changes = "SELECT set_config('client_encoding', 'LATIN1', false)";
    for text in ["SELECT 'é'", "SELECT 1 WHERE 'é' = 'x'"] {
        let pipeline = Batch::new().statement(changes).statement(text).sync();
        assert_passes(&wire.run(&pipeline));
    }
    let pipeline = Batch::new()
        .statement(changes)
        .statement("SELECT 1 AS é")
        .sync();
    assert_says(
        &pretty(&wire.run(&pipeline)),
        "it has characters beyond ASCII",
    );
}
