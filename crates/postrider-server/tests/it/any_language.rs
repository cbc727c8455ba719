//! Applications in other languages send by SQL into the file of a running node.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// What arrived at a receiver, with its own node and store.
struct World {
    home: Home,
    node: Node,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn start() -> Self {
        let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&bodies);
        let receiver = Receiver::start(move |request| {
            seen.lock().unwrap().push(String::from_utf8(request.body).unwrap());
            Some(200)
        });
        let home = Home::new();
        let node = home.start();
        node.create_endpoint(
            json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }),
        );
        Self { home, node, bodies }
    }

    fn python(&self, script: &str) -> Output {
        self.fed("python3", &["-"], script)
    }

    /// The program in the folder of the store, fed with a script.
    fn fed(&self, program: &str, arguments: &[&str], script: &str) -> Output {
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; see `cargo xtask with-servers true`"));
        child.stdin.take().expect("stdin is piped").write_all(script.as_bytes()).expect("it reads");
        child.wait_with_output().expect("it ends")
    }

    fn until_received(&self, expected: &[&str]) {
        eventually(Duration::from_secs(30), "everything arrives", || {
            (self.bodies.lock().unwrap().len() >= expected.len()).then_some(())
        });
        assert_eq!(*self.bodies.lock().unwrap(), expected);
    }
}

fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const PYTHON: &str = r#"
import json, sqlite3
db = sqlite3.connect("postrider.db", isolation_level=None)
db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")

def order(total, end):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO orders (total) VALUES (?)", [total])
    db.execute("INSERT INTO postrider_send (endpoint, payload, ordering_key) VALUES ('shop', ?, 'k')",
               [json.dumps({"total": total})])
    sent = db.execute("SELECT id, duplicate FROM postrider_last_send").fetchone()
    db.execute(end)
    return sent

print(order(1, "COMMIT"), order(2, "ROLLBACK"), order(3, "COMMIT"))
print(db.execute("SELECT total FROM orders ORDER BY id").fetchall())
"#;

#[test]
fn a_commit_in_python_arrives_and_a_rollback_does_not() {
    let world = World::start();
    let printed = printed(&world.python(PYTHON));
    assert_eq!(printed, "(1, 0) (2, 0) (2, 0)\n[(1,), (3,)]\n");
    world.until_received(&[r#"{"total": 1}"#, r#"{"total": 3}"#]);
    world.node.until(2, "completed");
    let seen = "import sqlite3; print(sqlite3.connect('postrider.db').execute('SELECT id, endpoint, state FROM postrider_messages').fetchall())";
    assert_eq!(self::printed(&world.python(seen)), "[(1, 'shop', 'completed'), (2, 'shop', 'completed')]\n");
}

const REFUSALS: &str = r#"
import sqlite3
db = sqlite3.connect("postrider.db", isolation_level=None)
db.execute("BEGIN IMMEDIATE")

def send(conflict="", **columns):
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    try:
        db.execute(f"INSERT {conflict} INTO postrider_send ({names}) VALUES ({marks})", list(columns.values()))
    except sqlite3.IntegrityError as error:
        print(str(error).split(":")[0])

for conflict in ["", "OR REPLACE", "OR IGNORE"]:
    send(conflict, endpoint="nowhere", payload="1")
    send(conflict, endpoint="off", payload="1")
    send(conflict, endpoint="shop", payload="1", priority=11)
    send(conflict, endpoint="shop", payload="x" * 1048577)
    send(conflict, endpoint="shop", payload=conflict, idempotency_key="first")
    send(conflict, endpoint="small", payload="1", idempotency_key="first", scheduled_at="2099-01-01T00:00:00Z")
    send(conflict, endpoint="small", payload="1")
db.execute("COMMIT")
print(db.execute("SELECT count(*) FROM postrider_queue WHERE endpoint = 'small'").fetchone()[0])
try:
    db.execute("DELETE FROM postrider_queue")
except sqlite3.OperationalError as error:
    print(error)
"#;

#[test]
fn python_is_told_what_was_refused_and_conflict_clauses_change_nothing() {
    let world = World::start();
    for (name, options) in [("off", json!({})), ("small", json!({ "max_queue_size": 1 }))] {
        let config = json!({ "url": "http://127.0.0.1:9/" });
        world.node.create_endpoint(
            json!({ "name": name, "protocol": "http", "config": config, "options": options }),
        );
    }
    world.home.json(&["endpoint", "disable", "off"]);
    let round = ["42704 endpoint", "55000 endpoint", "22023 priority", "54000 payload"];
    let full = "53400 options.max_queue_size";
    let mut expected: Vec<&str> = round.to_vec();
    expected.push(full);
    for _ in ["OR REPLACE", "OR IGNORE"] {
        expected.extend(round);
        expected.extend(["23505 idempotency_key", full]);
    }
    expected.extend(["1", "cannot modify postrider_queue because it is a view"]);
    assert_eq!(printed(&world.python(REFUSALS)).lines().collect::<Vec<_>>(), expected);
    world.until_received(&[""]);
}

#[test]
fn the_shell_of_sqlite_sends_too() {
    let world = World::start();
    let script = "BEGIN IMMEDIATE;
        INSERT INTO postrider_send (endpoint, payload, headers) VALUES ('shop', '{\"a\": 1}', '{\"x-a\": \"b\"}');
        SELECT id, duplicate FROM postrider_last_send;
        COMMIT;
        INSERT INTO postrider_send (endpoint, payload) VALUES ('nowhere', '1');";
    let output = world.fed("sqlite3", &["postrider.db"], script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1|0\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("42704 endpoint: there is no endpoint of this name"), "{said}");
    world.until_received(&[r#"{"a": 1}"#]);
}
