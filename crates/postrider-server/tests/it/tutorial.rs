//! docs/tutorial.md is followed word by word, in terminals of its own, and has to come out as it says.
//!
//! `<!-- file NAME -->` is written down, `<!-- terminal NAME -->` is a program that runs there until the next one,
//! `<!-- shows NAME -->` is what it says by then, and `<!-- type -->` is typed line by line beside them.
//! With `until` it is typed again until it comes out so. `…` stands for anything, white space for one blank.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::docs::matches;
use crate::node::Home;
use crate::terminal::Terminal;

const WITHIN: Duration = Duration::from_secs(30);
const CONTROL_C: &str = "\u{3}";

struct Desk {
    home: Home,
    path: String,
    listen: String,
    terminals: HashMap<String, Terminal>,
}

#[test]
fn the_tutorial_comes_out_as_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial.md");
    let (node, receiver) = (free_port(), free_port());
    let page = std::fs::read_to_string(page).expect("the tutorial");
    let page = page.replace("7171", &node).replace("9000", &receiver);
    let binaries = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().expect("a folder");
    let mut desk = Desk {
        home: Home::new(),
        path: format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default()),
        listen: format!("127.0.0.1:{node}"),
        terminals: HashMap::new(),
    };
    let mut steps = 0;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(marker) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        assert!(
            lines.next().is_some_and(|fence| fence.starts_with("```")),
            "{marker}: a block has to follow"
        );
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        desk.follow(marker, &block);
        steps += 1;
    }
    assert!(steps >= 10, "only {steps} steps were found");
}

impl Desk {
    fn follow(&mut self, marker: &str, block: &[&str]) {
        match marker.split_once(' ').unwrap_or((marker, "")) {
            ("file", name) => {
                std::fs::write(self.home.path().join(name), block.join("\n") + "\n").expect("a file");
            }
            ("terminal", name) => self.start(name, block),
            ("shows", name) => self.until_shown(name, block),
            ("type", again) => {
                for (command, expected) in typed(block) {
                    let within = if again == "until" { WITHIN } else { Duration::ZERO };
                    until_so(&command, &expected, within, || self.print(&command));
                }
            }
            _ => panic!("nobody knows what {marker} means"),
        }
    }

    /// What ran there before is ended as a person ends it.
    fn start(&mut self, name: &str, block: &[&str]) {
        if let Some(mut before) = self.terminals.remove(name) {
            before.press(CONTROL_C);
            before.end();
        }
        let (command, expected) = typed(block).into_iter().next().expect("a command");
        let terminal = self.terminal(&command);
        self.terminals.insert(name.to_owned(), terminal);
        self.until_shown(name, &expected.lines().collect::<Vec<_>>());
    }

    fn until_shown(&mut self, name: &str, block: &[&str]) {
        let terminal = self.terminals.get_mut(name).expect("a terminal of this name");
        until_so(name, &format!("…{}…", block.join("\n")), WITHIN, || terminal.screen());
    }

    fn print(&self, command: &str) -> String {
        self.terminal(command).end().screen
    }

    fn terminal(&self, command: &str) -> Terminal {
        Terminal::shell(&self.home, command, &[("PATH", &self.path), ("POSTRIDER_LISTEN", &self.listen)])
    }
}

#[track_caller]
fn until_so(what: &str, expected: &str, within: Duration, mut print: impl FnMut() -> String) {
    let deadline = Instant::now() + within;
    let mut printed = print();
    while !matches(expected, &printed) {
        assert!(Instant::now() < deadline, "$ {what}\nexpected:\n{expected}\nprinted:\n{printed}");
        std::thread::sleep(Duration::from_millis(50));
        printed = print();
    }
}

/// Commands begin with `$ `; what follows one is what it prints.
fn typed(block: &[&str]) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if command.ends_with('\\') => {
                command.pop();
                command.push_str(line);
            }
            (None, Some((_, expected))) => *expected += &format!("{line}\n"),
            (None, None) => panic!("{line}: a block begins with a command"),
        }
    }
    commands
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port().to_string()
}
