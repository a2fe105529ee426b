//! The Debian package: what is in it, and that it can be run as it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgpalisade_tests::machine::repository;
use pgpalisade_tests::postgres::scratch_dir;
use pgpalisade_tests::proxy::binary;

/// The words of a program that must succeed.
fn stdout(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {errors}");
    String::from_utf8(stdout).unwrap()
}

fn build(directory: &Path) -> PathBuf {
    let mut command = Command::new(repository().join("scripts/build-deb"));
    stdout(command.arg(binary()).arg(directory));
    let mut built = std::fs::read_dir(directory).unwrap();
    built.next().unwrap().unwrap().path()
}

#[test]
fn the_debian_package_has_what_a_service_needs() {
    let dir = scratch_dir();
    let deb = build(dir.path());
    let listed = stdout(Command::new("dpkg-deb").arg("--contents").arg(&deb));
    for line in listed.lines() {
        assert!(line.contains(" root/root "), "{line}");
    }
    let root = dir.path().join("root");
    stdout(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([&deb, &root]),
    );
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();

    let program = root.join("usr/bin/pgpalisade");
    let version = stdout(Command::new(&program).arg("--version"));
    let field = |name: &str| {
        let mut command = Command::new("dpkg-deb");
        stdout(command.arg("--field").arg(&deb).arg(name))
    };
    assert_eq!(
        version.trim(),
        format!("pgpalisade {}", field("Version").trim())
    );
    assert!(field("Depends").contains("libc6 (>= "));

    // The unit starts this very program with this very file.
    let unit = text("lib/systemd/system/pgpalisade.service");
    let start = "ExecStart=/usr/bin/pgpalisade serve --config /etc/pgpalisade/pgpalisade.toml";
    assert!(unit.lines().any(|line| line == start), "{unit}");
    assert!(!unit.contains("/usr/local"), "{unit}");

    // Every key of the example is one that the proxy knows, those that are commented out too.
    let example = text("etc/pgpalisade/pgpalisade.toml");
    let uncommented = example.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    // Verifiers come from one place, and the files are for these ways of logging in.
    let one_source = uncommented.filter(|line| !line.starts_with("auth_query"));
    let all: Vec<&str> = one_source.collect();
    let file = dir.path().join("all.toml");
    std::fs::write(&file, all.join("\n")).unwrap();
    let mut check = Command::new(&program);
    let checked = check
        .args(["check", "--auth=scram", "--tls-mode=require", "--config"])
        .arg(&file)
        .env_remove("PGPALISADE_BIN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("ok    config"), "{checked:?}");

    for page in ["pgpalisade", "pgpalisade-serve", "pgpalisade-scope-repair"] {
        let page = root.join(format!("usr/share/man/man1/{page}.1.gz"));
        assert!(page.exists(), "{page:?}");
    }
    let hidden = root.join("usr/share/man/man1/pgpalisade-package-files.1.gz");
    assert!(!hidden.exists());
    let completions = text("usr/share/bash-completion/completions/pgpalisade");
    assert!(completions.contains("--takeover-timeout"));
    let control = dir.path().join("control");
    stdout(
        Command::new("dpkg-deb")
            .arg("--control")
            .args([&deb, &control]),
    );
    for script in ["postinst", "prerm", "postrm"] {
        stdout(Command::new("sh").arg("-n").arg(control.join(script)));
    }
}
