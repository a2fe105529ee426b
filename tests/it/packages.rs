//! The Debian package, the image and the manifests: their contents, and that they run unchanged.

mod manifests;
mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::scratch_dir;
use pgpalisade_test_servers::programs::feed;
use pgpalisade_test_servers::proxy::binary;

/// Output of a program that must succeed.
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
    // The package is temporary, so compression is a waste.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
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

    // The unit starts this program with this file.
    let unit = text("lib/systemd/system/pgpalisade.service");
    let start = "ExecStart=pgpalisade serve --config /etc/pgpalisade/pgpalisade.toml";
    assert!(unit.lines().any(|line| line == start), "{unit}");

    // The proxy knows every key of the example, including those that are commented out.
    let example = text("etc/pgpalisade/pgpalisade.toml");
    let uncommented = example.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    // Verifiers have one source. The files are for these login methods, and the keys of [backends] for this pool.
    let one_source = uncommented.filter(|line| !line.starts_with("auth_query"));
    let all: Vec<&str> = one_source.collect();
    let file = dir.path().join("all.toml");
    std::fs::write(&file, all.join("\n")).unwrap();
    let mut check = Command::new(&program);
    let checked = check
        .args([
            "check",
            "--auth=scram",
            "--tls-mode=require",
            "--pool=transaction",
            "--config",
        ])
        .arg(&file)
        .env_remove("PGPALISADE_BIN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("ok    config"), "{checked:?}");

    has_pages(&root.join("usr/share/man"));
    has_the_book(&root.join("usr/share/doc/pgpalisade"));
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

/// Each page exists under the name that others use, and groff reports no errors.
fn has_pages(man: &Path) {
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect()
    };
    assert_eq!(names(man), ["man8"]);
    let man = man.join("man8");
    let pages = names(&man);
    for name in ["pgpalisade", "pgpalisade-serve", "pgpalisade-scope-repair"] {
        assert!(pages.contains(&format!("{name}.8.gz")), "{pages:?}");
    }
    assert!(!pages.contains(&"pgpalisade-package-files.8.gz".to_owned()));
    for page in &pages {
        let source = stdout(Command::new("zcat").arg(man.join(page)));
        let text = source.replace('\\', "");
        let named = text
            .split_whitespace()
            .filter_map(|word| word.split_once('('));
        for (name, section) in named.filter(|(name, _)| name.starts_with("pgpalisade-")) {
            let is_there = pages.contains(&format!("{name}.8.gz"));
            assert!(
                section.starts_with("8)") && is_there,
                "{page}: {name}({section}"
            );
        }
        let mut groff = Command::new("groff");
        groff.args(["-man", "-ww", "-z", "-Tutf8"]);
        let rendered = feed(groff, &source);
        assert_eq!(String::from_utf8_lossy(&rendered.stderr), "", "{page}");
    }
}

/// The book is complete with everything that it links to, and so are alerts, the dashboard, policies and examples.
fn has_the_book(doc: &Path) {
    for file in [
        "docs/index.md",
        "docs/runbooks.md",
        "examples/scheduler.py",
        "packaging/grafana/pgpalisade.json",
        "packaging/kubernetes/pair.yaml",
        "packaging/prometheus-rules.yml",
        "policies/examples/cron-leader.toml",
    ] {
        assert!(doc.join(file).is_file(), "{file}");
    }
    for file in ["docs/decisions", "docs/verification.md"] {
        assert!(!doc.join(file).exists(), "{file}");
    }
    let docs = std::fs::read_dir(doc.join("docs")).unwrap();
    let pages = docs.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    for page in pages.chain([doc.join("README.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for after in text.split("](").skip(1) {
            let link = after.split([')', '#']).next().unwrap();
            let leads = link.contains("://") || page.with_file_name(link).exists();
            assert!(leads, "{page:?}: {link}");
        }
    }
}
