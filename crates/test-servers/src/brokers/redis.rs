//! Redis.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use super::{Broker, BrokerKind, BrokerListeners, DENIED_USER, PASSWORD, Program, USER, write};
use crate::ground::Folder;
use crate::process::wait_until;

const PROGRAM: &str = "/usr/bin/redis-server";

/// Settings with which it refuses every write, because its memory is full.
pub const FULL: &str = "maxmemory 1\nmaxmemory-policy noeviction\n";

/// Answered by an error while it loads its data.
pub(super) const PING: &[u8] = b"PING\r\n";

pub(super) fn installed() -> bool {
    Path::new(PROGRAM).exists()
}

pub(super) fn prepare(folder: Folder, settings: &str) -> Result<Broker, String> {
    let path = folder.path();
    let listeners = BrokerListeners::new(path);
    let BrokerListeners { plain, tls, mutual_tls, .. } = listeners;
    let demanding = server(path, "demanding", (0, mutual_tls), &format!("tls-auth-clients yes\n{settings}"))?;
    let usual = server(path, "usual", (plain, tls), &format!("tls-auth-clients no\n{settings}"))?;
    let programs = vec![demanding, usual];
    Ok(Broker::new(BrokerKind::Redis, listeners, programs, folder))
}

impl Broker {
    /// A copy of a Redis that refuses writes.
    pub fn read_only_replica(&self) -> Result<Broker, String> {
        assert_eq!(self.kind, BrokerKind::Redis);
        let source = self.listeners.plain;
        let mut replica = BrokerKind::Redis.prepare(&format!("replicaof 127.0.0.1 {source}"))?;
        replica.start_again()?;
        let port = replica.listeners.plain;
        let copied = || replication(port).is_ok_and(|state| state.contains("master_link_status:up"));
        if wait_until(copied) { Ok(replica) } else { Err(format!("no replica: {}", replica.last_words())) }
    }
}

fn replication(port: u16) -> std::io::Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.write_all(b"INFO replication\r\nQUIT\r\n")?;
    let mut state = String::new();
    connection.read_to_string(&mut state)?;
    Ok(state)
}

fn server(path: &Path, name: &str, ports: (u16, u16), settings: &str) -> Result<Program, String> {
    let (plain, tls) = ports;
    let folder = path.display();
    let configuration = format!(
        "bind 127.0.0.1
port {plain}
tls-port {tls}
tls-cert-file {folder}/server.crt
tls-key-file {folder}/server.key
tls-ca-cert-file {folder}/ca.crt
appendonly yes
appendfsync always
appenddirname {name}-log
dbfilename {name}.rdb
save \"\"
proto-max-bulk-len 1mb
repl-diskless-sync-delay 0
user {USER} on >{PASSWORD} ~* &* +@all
user {DENIED_USER} on >{PASSWORD} +@all
{settings}
"
    );
    let file = format!("{name}.conf");
    write(path, &file, &configuration)?;
    Ok(Program { command: vec![PROGRAM.to_owned(), file], port: tls })
}
