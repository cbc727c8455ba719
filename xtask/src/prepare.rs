//! What the tests need of the machine besides Rust and a C compiler, installed when it is missing.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use test_servers::{Binaries, BrokerKind, pgbouncer};

use crate::command::{Environment, has, run};

/// Another process may be installing: wait for it instead of failing.
const APT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=900", "-y", "-q"];
/// apt does not wait for another process that updates the lists; a machine that has just started runs one.
const UPDATE_TRIES: u32 = 10;
const UPDATE_PAUSE: Duration = Duration::from_secs(3);

pub(crate) fn prepare() -> Result<(), String> {
    install(&needed())
}

/// Why tests that need a broker are skipped, if they are.
pub(crate) fn brokers() -> Option<String> {
    let error = install(&needed_for_brokers()).err()?;
    Some(format!("tests that need a broker that is not installed are skipped: {error}"))
}

fn install(packages: &[(&'static str, bool)]) -> Result<(), String> {
    let missing: Vec<&str> =
        packages.iter().filter(|(_, installed)| !installed).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !has("apt-get", &["--version"]) || !is_root() {
        return Err(format!("please install {}, as root", missing.join(", ")));
    }
    let quietly = [("DEBIAN_FRONTEND", "noninteractive".to_owned())];
    update(&quietly);
    let _asleep = Asleep::begin()?;
    run("apt-get", &[&APT[..], &["install", "--no-install-recommends"], &missing].concat(), &quietly)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Installing says what is wrong, if old lists or none are not good enough.
fn update(quietly: &Environment) {
    for _ in 0..UPDATE_TRIES {
        if run("apt-get", &[&APT[..], &["update"]].concat(), quietly).is_ok() {
            return;
        }
        thread::sleep(UPDATE_PAUSE);
    }
}

/// Debian packages, and whether the programs in them are installed.
fn needed() -> [(&'static str, bool); 5] {
    [
        ("curl", has("curl", &["--version"])),
        ("postgresql", Binaries::debian().is_some()),
        ("pgbouncer", Path::new(pgbouncer::PROGRAM).exists()),
        ("sqlite3", has("sqlite3", &["--version"])),
        ("python3-pip", has("python3", &["-m", "pip", "--version"])),
    ]
}

fn needed_for_brokers() -> [(&'static str, bool); 8] {
    [
        ("openssl", has("openssl", &["version"])),
        ("mosquitto", BrokerKind::Mosquitto.installed()),
        ("mosquitto-clients", Path::new("/usr/bin/mosquitto_pub").exists()),
        ("redis-server", BrokerKind::Redis.installed()),
        ("rabbitmq-server", BrokerKind::RabbitMq.installed()),
        ("amqp-tools", Path::new("/usr/bin/amqp-consume").exists()),
        ("default-jre-headless", has("java", &["-version"])),
        // Only for installing Kafka.
        ("maven", BrokerKind::Kafka.installed() || has("mvn", &["--version"])),
    ]
}

/// While this lives, Debian's packages make no cluster and start no server on their usual ports; ours are private.
struct Asleep(Vec<PathBuf>);

impl Asleep {
    fn begin() -> Result<Self, String> {
        let mut wishes = Self(Vec::new());
        let clusters = Path::new("/etc/postgresql-common/createcluster.d");
        fs::create_dir_all(clusters).map_err(|error| format!("{}: {error}", clusters.display()))?;
        wishes.write(clusters.join("postrider-tests.conf"), "create_main_cluster = false\n", 0o644)?;
        let services = Path::new("/usr/sbin/policy-rc.d");
        // An existing one decides what may be started.
        if !services.exists() {
            wishes.write(services.to_owned(), NO_SERVERS, 0o755)?;
        }
        Ok(wishes)
    }

    fn write(&mut self, file: PathBuf, text: &str, mode: u32) -> Result<(), String> {
        let written = fs::write(&file, text)
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(mode)))
            .map_err(|error| format!("cannot write {}: {error}", file.display()));
        self.0.push(file);
        written
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

/// Names only these services, in case the file is ever left behind.
const NO_SERVERS: &str = "#!/bin/sh
case \"$1\" in postgresql*|pgbouncer*|mosquitto*|redis*|rabbitmq*|epmd*) exit 101 ;; esac
exit 0
";

/// rustup leaves out what a minimal profile does not have.
pub(crate) fn components() -> Result<(), String> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has("cargo", &[subcommand, "--version"]) {
            run("rustup", &["component", "add", component], &[])?;
        }
    }
    Ok(())
}
