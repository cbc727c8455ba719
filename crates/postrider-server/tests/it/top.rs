//! `postrider top` in a real terminal, on a real node.

use serde_json::json;

use crate::cli::told;
use crate::node::{Home, Node};
use crate::receiver::Receiver;
use crate::terminal::Terminal;

const ESCAPE: &str = "\u{1b}";
const CONTROL_C: &str = "\u{3}";
const TERMINATE: i32 = 15;

fn with_endpoints(node: &Node) {
    let receiver = Receiver::start(|_| Some(200));
    for name in ["shop", "till"] {
        node.create_endpoint(
            json!({ "name": name, "protocol": "http", "config": { "url": receiver.url() } }),
        );
    }
}

fn top(home: &Home, node: &Node) -> Terminal {
    Terminal::start(home, &["top", "--url", &format!("http://{}", node.address)])
}

#[track_caller]
fn ends_well(terminal: Terminal) {
    let ended = terminal.end();
    assert_eq!(ended.code, Some(0), "{}", ended.screen);
    assert!(ended.drew && ended.restored, "the terminal is not as it was: {}", ended.screen);
}

#[test]
fn a_person_watches_a_node_and_leaves_with_q() {
    let home = Home::new();
    let node = home.start();
    with_endpoints(&node);
    let mut terminal = top(&home, &node);
    terminal.until_shown(&format!("postrider at http://{}", node.address));
    terminal.until_shown("shop");
    assert!(terminal.screen().contains("closed"), "{}", terminal.screen());
    home.json(&["endpoint", "pause", "till"]);
    terminal.until_shown("paused");
    home.json(&["send", "till", "{}"]);
    terminal.until_shown("pending 1 ");
    terminal.until_shown("delivery p50 -");
    node.send("shop", &[], "{}");
    terminal.until_gone("delivery p50 -");
    terminal.press("q");
    ends_well(terminal);
}

#[test]
fn a_node_that_goes_away_is_asked_again() {
    let home = Home::new();
    let node = home.start();
    with_endpoints(&node);
    let address = node.address.to_string();
    let mut terminal = top(&home, &node);
    terminal.until_shown("till");
    node.kill();
    terminal.until_shown("cannot reach a node at");
    terminal.until_shown("asking again; this is how it was");
    assert!(terminal.screen().contains("shop"), "what is known stays: {}", terminal.screen());
    let _node = home.start_with(&["--allow-internal", "--listen", &address]);
    terminal.until_gone("cannot reach a node at");
    terminal.press(ESCAPE);
    ends_well(terminal);
}

#[test]
fn a_window_may_become_very_small_and_large_again() {
    let home = Home::new();
    let node = home.start();
    with_endpoints(&node);
    let mut terminal = top(&home, &node);
    terminal.until_shown("circuit");
    for (rows, columns) in [(8, 20), (1, 1), (2, 300)] {
        terminal.resize(rows, columns);
    }
    terminal.resize(40, 100);
    terminal.until_shown("q quits");
    terminal.until_shown("circuit");
    terminal.press(CONTROL_C);
    ends_well(terminal);
}

#[test]
fn whoever_ends_it_the_terminal_is_restored() {
    let home = Home::new();
    let node = home.start();
    let mut terminal = top(&home, &node);
    terminal.until_shown("q quits");
    terminal.signal(TERMINATE);
    ends_well(terminal);
}

#[test]
fn a_token_that_is_asked_for_meanwhile_ends_it_in_words() {
    let home = Home::new();
    let node = home.start();
    let mut terminal = top(&home, &node);
    terminal.until_shown("q quits");
    home.json(&["token", "create", "who", "monitor"]);
    let ended = terminal.end();
    assert!(ended.code == Some(4) && ended.restored, "{}", ended.screen);
    assert!(ended.screen.contains("asks for a token"), "{}", ended.screen);
}

#[test]
fn without_a_node_nothing_is_drawn() {
    let home = Home::new();
    let ended = Terminal::start(&home, &["top", "--url", "http://127.0.0.1:1"]).end();
    assert!(ended.code == Some(3) && !ended.drew && ended.restored, "{}", ended.screen);
    assert!(ended.screen.contains("cannot reach a node at http://127.0.0.1:1"), "{}", ended.screen);
}

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let home = Home::new();
    let top = |arguments: &[&str]| {
        format!(
            "$ postrider top {}\n{}",
            arguments.join(" "),
            told(&home.run(&[&["top"], arguments].concat()))
        )
    };
    insta::assert_snapshot!([top(&["--help"]), top(&[]), top(&["--json"])].join("\n\n"));
}
