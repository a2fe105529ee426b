//! The package installed, used and purged, and the image built and run: as root, in separate namespaces.
//!
//! Not tested: systemd itself, which a script replaces, and the compilation in the image (see `image.sh`).

use std::ffi::OsStr;
use std::process::{Command, Output};

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::{bin, scratch_dir};
use pgpalisade_test_servers::proxy::binary;

const OWN: &str = include_str!("own.sh");
const OVERLAY: &str = include_str!("overlay.sh");
const INSTALLED: &str = include_str!("installed.sh");
const IMAGE: &str = include_str!("image.sh");

/// Runs a script after [`OWN`], with a scratch directory and these arguments. Its processes and mounts end with it.
fn run(script: &str, arguments: &[&OsStr]) -> Output {
    let (programs, dir) = (bin("psql"), scratch_dir());
    Command::new("timeout")
        .args(["120", "unshare", "--mount", "--net", "--pid"])
        .args(["--fork", "--kill-child", "--mount-proc", "sh", "-c"])
        .arg(format!("{OWN}{script}"))
        .arg("sh")
        .arg(programs.parent().unwrap())
        .arg(dir.path())
        .args(arguments)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .output()
        .unwrap()
}

#[track_caller]
fn succeed(script: &str, arguments: &[&OsStr]) {
    let Output {
        status,
        stdout,
        stderr,
    } = run(script, arguments);
    let [said, steps] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}\n{said}\n{steps}");
    print!("{said}");
}

/// Whether this machine can run the script. If not, it says so.
fn can_try(what: &str, script: &str, arguments: &[&OsStr]) -> bool {
    let tried = run(script, arguments);
    let can = tried.status.success();
    if !can {
        let why = String::from_utf8_lossy(&tried.stderr).into_owned();
        println!("NOT TRIED: {what}, which needs root and namespaces:\n{why}");
    }
    can
}

#[test]
fn the_package_is_installed_used_and_purged() {
    let [nothing, no_steps] = ["/dev/null", "true"].map(OsStr::new);
    if !can_try("the package", OVERLAY, &[nothing, no_steps]) {
        return;
    }
    let dir = scratch_dir();
    let package = super::build(dir.path());
    let steps = format!("{OWN}{INSTALLED}");
    succeed(OVERLAY, &[package.as_os_str(), steps.as_ref()]);
}

#[test]
fn the_image_is_built_and_run() {
    if can_try("the image", "", &[]) {
        let (source, program) = (repository(), binary());
        succeed(IMAGE, &[source.as_os_str(), program.as_os_str()]);
    }
}
