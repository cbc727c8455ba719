//! What the tests need of the machine besides Rust and a C compiler, installed when it is missing.

use std::path::Path;

use test_servers::{Binaries, pgbouncer};

use crate::command::{has, run};

/// Another process may be installing: wait for it instead of failing.
const APT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=900", "-y", "-q"];

pub(crate) fn prepare() -> Result<(), String> {
    let missing: Vec<&str> =
        needed().into_iter().filter(|(_, there)| !there).map(|(package, _)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !has("apt-get", &["--version"]) {
        return Err(format!("please install {}", missing.join(", ")));
    }
    let quietly = [("DEBIAN_FRONTEND", "noninteractive".to_owned())];
    run("apt-get", &[&APT[..], &["update"]].concat(), &quietly)?;
    without_a_cluster_of_its_own(|| {
        run("apt-get", &[&APT[..], &["install", "--no-install-recommends"], &missing].concat(), &quietly)
    })
}

/// Debian packages, and whether what they bring is there.
fn needed() -> [(&'static str, bool); 4] {
    [
        ("curl", has("curl", &["--version"])),
        ("postgresql", Binaries::debian().is_some()),
        ("pgbouncer", Path::new(pgbouncer::PROGRAM).exists()),
        ("python3-pip", has("python3", &["-m", "pip", "--version"])),
    ]
}

/// Debian's package would make a cluster and start it; ours are private.
fn without_a_cluster_of_its_own(install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let folder = Path::new("/etc/postgresql-common/createcluster.d");
    let wish = folder.join("postrider-tests.conf");
    let _ = std::fs::create_dir_all(folder);
    let _ = std::fs::write(&wish, "create_main_cluster = false\n");
    let installed = install();
    let _ = std::fs::remove_file(&wish);
    installed
}

/// rustup leaves out what a minimal profile does not have.
pub(crate) fn components() -> Result<(), String> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has("cargo", &[subcommand, "--version"]) {
            run("rustup", &["component", "add", component], &[])?;
        }
    }
    Ok(())
}
