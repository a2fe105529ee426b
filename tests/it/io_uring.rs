//! A ring for each worker, if requested and allowed by the kernel (docs/decisions/0011).

use std::fs;

use pgpalisade_test_servers::stage::Stage;

/// Number of rings that a proxy of two workers holds, and whether its log says that the kernel allows none.
fn rings(mode: &str) -> (usize, bool) {
    let stage = Stage::with_flags("", &[("--workers", "2"), ("--io-uring", mode)]);
    // Each worker has its ring before its first session, and each worker gets one of these.
    let mut sessions = [stage.plain(), stage.plain()];
    for session in &mut sessions {
        session.ok("SELECT 1");
    }
    let open = fs::read_dir(format!("/proc/{}/fd", stage.proxy.pid())).unwrap();
    let targets = open.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let rings = targets.filter(|target| target.as_os_str() == "anon_inode:[io_uring]");
    (
        rings.count(),
        stage.proxy.output().contains("io_uring is not available"),
    )
}

#[test]
fn io_uring_is_used_where_the_operator_and_the_kernel_allow_it() {
    assert_eq!(rings("off"), (0, false));
    let auto = rings("auto");
    assert!([(2, false), (0, true)].contains(&auto), "{auto:?}");
}
