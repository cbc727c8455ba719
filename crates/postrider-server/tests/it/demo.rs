//! The demo's own account must add up, and say so to machines.

use serde_json::{Value, json};

use crate::node::Home;

#[test]
fn the_account_of_a_small_demo_adds_up() {
    let home = Home::new();
    let output = home.run(&["demo", "--messages", "200", "--seed", "7", "--json"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stdout));
    let account: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&account["adds_up"], &account["sent"]), (&json!(true), &json!(200)), "{account:#}");
    let count = |name: &str| account[name].as_u64().expect("a number");
    assert_eq!(count("delivered") + count("dead") + count("expired"), 200, "{account:#}");
    assert!(count("dead") >= 1, "{account:#}");
    assert_eq!(account["order"]["violations"], 0);
    assert!(account["order"]["keys"].as_u64() > Some(1), "{account:#}");
    assert!(!home.store_file().exists(), "the demo leaves nothing behind");
}
