//! A PostgreSQL server of one's own.

mod binaries;
mod standby;
mod tls;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Child;
use std::sync::LazyLock;

pub use binaries::Binaries;
pub use tls::Tls;

use crate::ground::Folder;
use crate::port;
use crate::process::{self, command, run, wait_until};

/// Names the server that a whole run shares, as its superuser.
pub const SHARED: &str = "POSTRIDER_TEST_POSTGRES";

/// The superuser's address of the server that tests share: the run's, or else one that this process starts.
pub fn shared() -> &'static str {
    static OWN: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().expect("a PostgreSQL server"));
    static URL: LazyLock<String> = LazyLock::new(|| std::env::var(SHARED).unwrap_or_else(|_| OWN.url()));
    &URL
}

/// Quick to start and to write, nothing that a process crash would lose. Time zone and message
/// language are not the defaults anywhere, so that nothing depends on them.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = '.'
max_connections = 300
max_prepared_transactions = 50
shared_buffers = 128MB
fsync = off
full_page_writes = off
timezone = 'Pacific/Auckland'
";

pub struct Postgres {
    binaries: Binaries,
    port: u16,
    /// None while it is stopped.
    process: Option<Child>,
    // Last, so that the server has ended when its folder goes.
    folder: Folder,
}

impl Postgres {
    /// Debian's version.
    pub fn start() -> Result<Self, String> {
        Self::of(Binaries::debian().ok_or("PostgreSQL is not installed: `cargo xtask test` would do it")?)
    }

    pub fn of(binaries: Binaries) -> Result<Self, String> {
        let mut server =
            Self { binaries, port: port::free(), process: None, folder: Folder::new("postgres")? };
        server.initialise()?;
        server.launch()?;
        Ok(server)
    }

    /// As its superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it as a crash would: no connection is waited for, nothing is written that was not yet.
    pub fn stop_immediately(&mut self) {
        if let Some(mut process) = self.process.take() {
            process::end(&mut process);
        }
    }

    /// Starts it again on the same port and data, after a stop.
    pub fn start_again(&mut self) -> Result<(), String> {
        self.stop_immediately();
        self.launch()
    }

    /// All of its processes stand still, and their connections with them, until it is thawed.
    pub fn freeze(&self) {
        let Some(process) = &self.process else { return };
        // The parent first, and wait for it, so that no child is missed that it was about to fork.
        process::signal("STOP", &[process.id()]);
        assert!(process::wait_until(|| process::is_stopped(process.id())), "the server does not stop");
        process::signal("STOP", &process::children(process.id()));
    }

    pub fn thaw(&self) {
        let Some(process) = &self.process else { return };
        process::signal("CONT", &process::children(process.id()));
        process::signal("CONT", &[process.id()]);
    }

    /// What the superuser is told.
    pub fn query(&self, sql: &str) -> Result<String, String> {
        let url = self.url();
        run(command(self.binaries.program("psql")).args(["-XAtq", "-d", &url, "-c", sql]), self.folder.path())
    }

    fn initialise(&self) -> Result<(), String> {
        let mut initdb = command(self.binaries.program("initdb"));
        initdb.args(["--pgdata", "data", "--username", "postgres", "--auth", "trust"]);
        initdb.args(["--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]);
        run(&mut initdb, self.folder.path())?;
        self.configure(&format!("{SETTINGS}port = {}\n", self.port))
    }

    /// Later settings win.
    fn configure(&self, settings: &str) -> Result<(), String> {
        let file = File::options().append(true).open(self.data().join("postgresql.conf"));
        file.and_then(|mut file| file.write_all(settings.as_bytes()))
            .map_err(|error| format!("cannot configure PostgreSQL: {error}"))
    }

    fn launch(&mut self) -> Result<(), String> {
        let data = self.data();
        let program = self.binaries.program("postgres");
        let data_argument = data.to_string_lossy();
        let mut process = process::start(&program, &["-D", &data_argument], self.folder.path(), &self.log())?;
        let mut ended = false;
        let decided = wait_until(|| {
            ended = !matches!(process.try_wait(), Ok(None));
            ended || self.ready(process.id())
        });
        if ended || !decided {
            process::end(&mut process);
            return Err(format!("PostgreSQL did not start: {}", self.last_words()));
        }
        self.process = Some(process);
        Ok(())
    }

    /// As pg_ctl sees it: the server writes its id and its state into a file.
    fn ready(&self, id: u32) -> bool {
        let state = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = state.lines();
        lines.next() == Some(&id.to_string()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop_immediately();
    }
}
