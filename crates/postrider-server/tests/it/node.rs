//! A real `postrider` process on a temporary store.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually;
use crate::http::{Answer, Client};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A folder with a store, and nothing of this machine's environment.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn store_file(&self) -> PathBuf {
        self.path().join("postrider.db")
    }

    /// `postrider …` in this folder, where the default store is.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_postrider"));
        command.args(arguments);
        command
    }

    /// Any program in this folder, which does not hear what this process was told.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("POSTRIDER_") || text.starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.path()).stdin(Stdio::null()).env("NO_COLOR", "1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// By sh, in this folder.
    pub(crate) fn shell(&self, script: &str) -> Output {
        self.program("sh").args(["-c", script]).output().expect("sh runs")
    }

    /// Runs it with `--json` and expects success.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON on stdout")
    }

    pub(crate) fn start(&self) -> Node {
        self.start_with(&["--allow-internal"])
    }

    pub(crate) fn start_with(&self, arguments: &[&str]) -> Node {
        Node::start(self.serve(arguments))
    }

    pub(crate) fn start_in(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Node {
        let mut command = self.serve(arguments);
        command.envs(environment.iter().copied());
        Node::start(command)
    }

    /// None of its files can grow past this many blocks: for this node the disk is full.
    pub(crate) fn start_with_file_blocks(&self, blocks: u32) -> Node {
        // Without the signal the write itself fails, as it does on a full disk.
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let serve = self.serve(&["--allow-internal"]);
        let mut command = self.program("sh");
        command.args(["-c", &limited, "sh"]).arg(serve.get_program()).args(serve.get_args());
        Node::start(command)
    }

    /// The same for a limit that can be lifted while the node runs. It cannot write what it begins with.
    pub(crate) fn start_without_room(&self, blocks: u32) -> Node {
        let limited = format!("trap '' XFSZ; ulimit -S -f {blocks}; exec \"$@\"");
        let serve = self.serve(&["--allow-internal"]);
        let mut command = self.program("sh");
        command.args(["-c", &limited, "sh"]).arg(serve.get_program()).args(serve.get_args());
        let mut node = Node::spawn(command);
        node.address = node.until_address(NO_NODE_YET);
        node
    }

    /// It does not get as far as to be ready; see [`Node::until_address`] and [`Node::until_written`].
    pub(crate) fn start_waiting(&self) -> Node {
        Node::spawn(self.serve(&["--allow-internal"]))
    }

    /// It may have this many files and connections open, and cannot raise the limit.
    pub(crate) fn start_with_open_files(&self, open_files: u32, arguments: &[&str]) -> Node {
        let serve = self.serve(arguments);
        let mut command = self.program("sh");
        let limited = format!("ulimit -n {open_files}; exec \"$@\"");
        command.args(["-c", &limited, "sh"]).arg(serve.get_program()).args(serve.get_args());
        Node::start(command)
    }

    fn serve(&self, arguments: &[&str]) -> Command {
        let unless_given = |flag: &str, given: &'static [&'static str]| match arguments.contains(&flag) {
            true => &[],
            false => given,
        };
        let listen = unless_given("--listen", &["--listen", "127.0.0.1:0"]);
        let format = unless_given("--log-format", &["--log-format", "json"]);
        self.command(&[&["serve"], listen, format, arguments].concat())
    }
}

pub(crate) struct Node {
    child: Child,
    pub(crate) address: SocketAddr,
    log: mpsc::Receiver<Value>,
    written: Arc<Mutex<String>>,
}

/// What a node says whose store it cannot join.
pub(crate) const NO_NODE_YET: &str = "cannot join the store yet, nothing is delivered; retrying";
const READY: &str = "Postrider is ready";

impl Node {
    fn start(command: Command) -> Self {
        let mut node = Self::spawn(command);
        node.address = node.until_address(READY);
        node
    }

    fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (lines, log) = mpsc::channel();
        let written: Arc<Mutex<String>> = Arc::default();
        let writing = written.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *writing.lock().expect("nobody panics while writing") += &format!("{line}\n");
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                let _ = lines.send(line);
            }
        });
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log, written }
    }

    pub(crate) fn until_ready(&self) -> SocketAddr {
        self.until_address(READY)
    }

    /// Of the line with this sentence.
    pub(crate) fn until_address(&self, sentence: &str) -> SocketAddr {
        let mut seen = Vec::new();
        loop {
            let Ok(line) = self.log.recv_timeout(READY_WITHIN) else {
                panic!("the node did not say {sentence:?}: {seen:?}");
            };
            if line["message"] == sentence {
                return line["address"].as_str().expect("an address").parse().expect("an address");
            }
            if let Some((_, rest)) = line.as_str().and_then(|text| text.split_once(sentence))
                && let Some((_, address)) = rest.split_once("address=")
            {
                return address.split(' ').next().and_then(|text| text.parse().ok()).expect("an address");
            }
            seen.push(line);
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address).expect("the node listens")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.client().send("GET", path, &[], b"").expect("an answer")
    }

    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.client().send("POST", path, headers, body).expect("an answer")
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.client().send("DELETE", path, &[], b"").expect("an answer")
    }

    #[track_caller]
    pub(crate) fn create_endpoint(&self, endpoint: Value) {
        self.post("/v1/endpoints", &[], endpoint.to_string().as_bytes()).expect(201);
    }

    #[track_caller]
    pub(crate) fn send(&self, endpoint: &str, headers: &[(&str, &str)], payload: &str) -> i64 {
        let path = format!("/v1/endpoints/{endpoint}/messages");
        let answer = self.post(&path, headers, payload.as_bytes()).expect(202).json();
        answer["id"].as_i64().expect("an id")
    }

    /// Waits until the message is in this state, and gives its story.
    #[track_caller]
    pub(crate) fn until(&self, id: i64, state: &str) -> Value {
        let mut last = json!(null);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while std::time::Instant::now() < deadline {
            last = self.get(&format!("/v1/messages/{id}")).expect(200).json();
            if last["state"] == state {
                return last;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("message {id} did not become {state}: {last:#}");
    }

    /// SIGKILL: nothing of the node gets to say goodbye.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it ran");
        self.child.wait().expect("it is ours");
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh runs").success());
    }

    pub(crate) fn until_exit(&mut self, within: Duration) -> ExitStatus {
        eventually(within, "the node ends", || self.child.try_wait().expect("it is ours"))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some()
    }

    /// What it logged so far, and what it still logs before it ends.
    pub(crate) fn messages_logged(&self) -> Vec<String> {
        let text = |line: Value| line["message"].as_str().map(str::to_owned);
        std::iter::from_fn(|| self.log.recv_timeout(Duration::from_secs(2)).ok()).filter_map(text).collect()
    }

    /// All that it wrote to stderr so far, as it stands there.
    pub(crate) fn written(&self) -> String {
        self.written.lock().expect("nobody panics while writing").clone()
    }

    /// The line about this message that says so.
    #[track_caller]
    pub(crate) fn until_logged(&self, id: i64, sentence: &str) -> Value {
        eventually(Duration::from_secs(30), &format!("{sentence} (message {id})"), || {
            let parsed = |line: &str| serde_json::from_str::<Value>(line).ok();
            let says = |line: &Value| line["message"] == sentence && line["message_id"] == id;
            self.written().lines().filter_map(parsed).find(says)
        })
    }

    /// For a test that kills it from elsewhere.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
