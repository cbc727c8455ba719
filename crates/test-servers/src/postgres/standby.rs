//! A second server that has what the first one committed, and can take its place.

use super::Postgres;
use crate::ground::Folder;
use crate::port;
use crate::process::{command, run, wait_until};

impl Postgres {
    /// A streaming standby. From here on every commit of this server waits until the standby has it on disk.
    pub fn synchronous_standby(&self) -> Result<Postgres, String> {
        let binaries = self.binaries.clone();
        let mut standby =
            Self { binaries, port: port::free(), process: None, folder: Folder::new("standby")? };
        let mut backup = command(self.binaries.program("pg_basebackup"));
        backup.args(["--dbname", &self.url(), "--pgdata", "data", "--write-recovery-conf"]);
        run(backup.args(["--checkpoint", "fast", "--no-sync"]), standby.folder.path())?;
        standby.configure(&format!("port = {}\n", standby.port))?;
        standby.launch()?;
        self.query("ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        self.query("SELECT pg_reload_conf()")?;
        let state = "SELECT sync_state FROM pg_stat_replication";
        if !wait_until(|| self.query(state).is_ok_and(|state| state == "sync")) {
            return Err(format!("the standby did not catch up: {}", standby.last_words()));
        }
        Ok(standby)
    }

    /// A standby becomes a server that takes writes.
    pub fn promote(&self) -> Result<(), String> {
        let mut promote = command(self.binaries.program("pg_ctl"));
        run(promote.args(["promote", "--pgdata", "data"]), self.folder.path()).map(drop)
    }
}
