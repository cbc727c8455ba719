//! The binary in a real terminal, and what a person would see there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;

use crate::node::Home;

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/terminal.py");

/// A terminal of 30 lines and 120 columns with a program in it.
pub(crate) struct Terminal {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// How it ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i64>,
    /// The terminal is as it was before.
    pub(crate) restored: bool,
    /// It took the whole screen.
    pub(crate) drew: bool,
    pub(crate) screen: String,
    /// All that it wrote, with what only terminals read.
    pub(crate) wrote: String,
}

impl Terminal {
    pub(crate) fn start(home: &Home, arguments: &[&str]) -> Self {
        Self::with(home, env!("CARGO_BIN_EXE_postrider"), arguments, &[])
    }

    /// Whatever a person types there.
    pub(crate) fn shell(home: &Home, line: &str, environment: &[(&str, &str)]) -> Self {
        Self::with(home, "/bin/sh", &["-c", line], environment)
    }

    fn with(home: &Home, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = home.program("python3");
        command.arg(DRIVER).arg(program).args(arguments);
        command.env("TERM", "xterm").envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python runs");
        let orders = child.stdin.take().expect("stdin");
        let answers = BufReader::new(child.stdout.take().expect("stdout"));
        Self { child, orders, answers }
    }

    #[track_caller]
    pub(crate) fn until_shown(&mut self, text: &str) {
        let answer = self.order(&format!("wait {text}"));
        assert_eq!(answer["seen"], true, "never shown: {text}\n{}", screen(&answer));
    }

    #[track_caller]
    pub(crate) fn until_gone(&mut self, text: &str) {
        let answer = self.order(&format!("wait-not {text}"));
        assert_eq!(answer["seen"], true, "always shown: {text}\n{}", screen(&answer));
    }

    pub(crate) fn screen(&mut self) -> String {
        screen(&self.order("look"))
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let hex: String = keys.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.order(&format!("keys {hex}"));
    }

    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        self.order(&format!("size {rows} {columns}"));
    }

    pub(crate) fn signal(&mut self, number: i32) {
        self.order(&format!("signal {number}"));
    }

    /// Waits until it has ended.
    pub(crate) fn end(mut self) -> Ended {
        let answer = self.order("end");
        Ended {
            code: answer["exit"].as_i64(),
            restored: answer["restored"] == true,
            drew: answer["drew"] == true,
            screen: screen(&answer),
            wrote: answer["wrote"].as_str().unwrap_or_default().to_owned(),
        }
    }

    fn order(&mut self, order: &str) -> Value {
        writeln!(self.orders, "{order}").expect("it reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn screen(answer: &Value) -> String {
    answer["screen"].as_str().unwrap_or_default().to_owned()
}
