//! Message brokers. One type for all of them, because tests start, kill and freeze all of them alike; a module
//! each for its configuration.

mod certificates;
pub mod kafka;
mod listeners;
mod mosquitto;
pub mod nats;
mod rabbitmq;
pub mod redis;
mod shared;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Child;

pub use listeners::BrokerListeners;

use crate::ground::Folder;
use crate::process::{self, wait_until};
use listeners::Readiness;

/// A user that may do everything.
pub const USER: &str = "postrider";
/// A user that may connect, but neither read nor write.
pub const DENIED_USER: &str = "denied";
/// The password of both users. No other word, because a test searches all that a node says for it.
pub const PASSWORD: &str = "open-sesame-42";

/// Every broker refuses a longer message. 1 MiB is the lowest limit that Redis accepts.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
    Mosquitto,
    Redis,
    Nats,
    RabbitMq,
    Kafka,
}

/// A private broker. Its methods act on all of its processes.
pub struct Broker {
    kind: BrokerKind,
    listeners: BrokerListeners,
    programs: Vec<Program>,
    /// Empty while it is stopped.
    processes: Vec<Child>,
    // Last, so that the broker has ended when its folder is removed.
    folder: Folder,
}

/// A process of a broker.
struct Program {
    command: Vec<String>,
    /// The next process is started when this port listens.
    port: u16,
}

impl BrokerKind {
    pub const ALL: [Self; 5] = [Self::Mosquitto, Self::Redis, Self::Nats, Self::RabbitMq, Self::Kafka];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mosquitto => "mosquitto",
            Self::Redis => "Redis",
            Self::Nats => "NATS",
            Self::RabbitMq => "RabbitMQ",
            Self::Kafka => "Kafka",
        }
    }

    pub fn installed(self) -> bool {
        certificates::can_be_made() && self.program_installed()
    }

    fn program_installed(self) -> bool {
        match self {
            Self::Mosquitto => mosquitto::installed(),
            Self::Redis => redis::installed(),
            Self::Nats => nats::installed(),
            Self::RabbitMq => rabbitmq::installed(),
            Self::Kafka => kafka::installed(),
        }
    }

    /// A running broker, or None and a line of output where it is not installed: the test is skipped then.
    pub fn start(self) -> Option<Broker> {
        self.start_with("")
    }

    /// With further lines for its configuration file.
    pub fn start_with(self, settings: &str) -> Option<Broker> {
        if !self.installed() {
            eprintln!("skipped: {} is not installed, see `cargo xtask with-servers true`", self.name());
            return None;
        }
        let mut broker = self.prepare(settings).expect("a broker's configuration can be written");
        broker.start_again().expect("an installed broker starts");
        Some(broker)
    }

    /// Writes its configuration, without starting it: its addresses are known from here on.
    pub fn prepare(self, settings: &str) -> Result<Broker, String> {
        let folder = Folder::new(&self.name().to_lowercase())?;
        certificates::write(folder.path())?;
        match self {
            Self::Mosquitto => mosquitto::prepare(folder, settings),
            Self::Redis => redis::prepare(folder, settings),
            Self::Nats => nats::prepare(folder, settings),
            Self::RabbitMq => rabbitmq::prepare(folder, settings),
            Self::Kafka => kafka::prepare(folder, settings),
        }
    }

    /// How to tell that all listeners of a broker work.
    fn ready(self, listeners: &BrokerListeners) -> Readiness {
        match self {
            Self::Mosquitto | Self::Nats => Readiness::Listens(listeners.plain),
            // The last listener that it opens.
            Self::RabbitMq => Readiness::Listens(listeners.mutual_tls),
            Self::Redis => Readiness::Answers { port: listeners.plain, question: redis::PING, first: b'+' },
            Self::Kafka => {
                Readiness::Answers { port: listeners.plain, question: kafka::API_VERSIONS, first: 0 }
            }
        }
    }
}

impl Broker {
    pub fn listeners(&self) -> &BrokerListeners {
        &self.listeners
    }

    /// As a crash would end it.
    pub fn kill(&mut self) {
        self.end("KILL");
    }

    /// In the orderly way.
    pub fn stop(&mut self) {
        self.end("TERM");
    }

    /// Starts it on the same ports and data, after a kill or a stop.
    pub fn start_again(&mut self) -> Result<(), String> {
        self.kill();
        for number in 0..self.programs.len() {
            self.start_program(number)?;
        }
        let ready = self.kind.ready(&self.listeners);
        self.wait_for(|| ready.now())
    }

    /// All of its processes stop, and keep their connections, until it is thawed.
    pub fn freeze(&self) {
        let parents: Vec<u32> = self.processes.iter().map(Child::id).collect();
        process::signal("STOP", &parents);
        // Wait for the parents, so that no child is missed that one was about to fork.
        let stopped = || parents.iter().all(|parent| process::is_stopped(*parent));
        assert!(wait_until(stopped), "{} cannot be frozen", self.kind.name());
        process::signal("STOP", &process::all_in(self.folder.path()));
    }

    pub fn thaw(&self) {
        process::signal("CONT", &process::all_in(self.folder.path()));
    }

    fn new(kind: BrokerKind, listeners: BrokerListeners, programs: Vec<Program>, folder: Folder) -> Self {
        Self { kind, listeners, programs, processes: Vec::new(), folder }
    }

    fn start_program(&mut self, number: usize) -> Result<(), String> {
        let Program { command, port } = &self.programs[number];
        let port = *port;
        let process = process::start_killed("env", command, self.folder.path(), &self.log())?;
        self.processes.push(process);
        self.wait_for(|| listens(port))
    }

    fn wait_for(&mut self, ready: impl Fn() -> bool) -> Result<(), String> {
        let mut ended = false;
        let decided = wait_until(|| {
            ended = self.processes.iter_mut().any(|process| !matches!(process.try_wait(), Ok(None)));
            ended || ready()
        });
        if decided && !ended {
            return Ok(());
        }
        self.kill();
        Err(format!("{} did not start: {}", self.kind.name(), self.last_words()))
    }

    /// In the opposite order of their start.
    fn end(&mut self, signal: &str) {
        while let Some(mut process) = self.processes.pop() {
            process::signal(signal, &[process.id()]);
            process::signal("CONT", &[process.id()]);
            if !wait_until(|| !matches!(process.try_wait(), Ok(None))) {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        process::signal("KILL", &process::all_in(self.folder.path()));
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    fs::write(folder.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
}
