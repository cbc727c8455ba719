//! A PgBouncer in transaction mode before a PostgreSQL server, as applications have it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Child;

use crate::ground::Folder;
use crate::port;
use crate::process::{self, wait_until};

/// Out of the PATH of ordinary users.
pub const PROGRAM: &str = "/usr/sbin/pgbouncer";

pub struct PgBouncer {
    port: u16,
    process: Child,
    // Last, so that PgBouncer has ended when its folder goes.
    _folder: Folder,
}

impl PgBouncer {
    /// For every database and role of the server on that port.
    pub fn before(server_port: u16) -> Result<Self, String> {
        let folder = Folder::new("pgbouncer")?;
        let port = port::free();
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
        };
        write("pgbouncer.ini", &configuration(server_port, port))?;
        write("users", "\"postgres\" \"\"\n")?;
        let log = folder.path().join("log");
        let process = process::start(Path::new(PROGRAM), &["pgbouncer.ini"], folder.path(), &log)?;
        let mut bouncer = Self { port, process, _folder: folder };
        let decided = wait_until(|| bouncer.ended() || bouncer.listens());
        if !decided || bouncer.ended() {
            return Err(format!("PgBouncer did not start: {}", fs::read_to_string(log).unwrap_or_default()));
        }
        Ok(bouncer)
    }

    pub fn url(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{database}", self.port)
    }

    fn ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    fn listens(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        process::end(&mut self.process);
    }
}

/// Without passwords it still wants to know its users: it asks the server.
fn configuration(server_port: u16, port: u16) -> String {
    format!(
        "[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
max_client_conn = 500
auth_type = trust
auth_file = users
auth_user = postgres
auth_query = SELECT rolname, '' FROM pg_roles WHERE rolname = $1
"
    )
}
