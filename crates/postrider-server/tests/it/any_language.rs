//! Applications in other languages send by SQL into the file of a running node.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use test_servers::{node_sqlite, old_sqlite};

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
        self.fed(Command::new("python3").arg("-"), script)
    }

    /// The program in the folder of the store, fed with a script.
    fn fed(&self, program: &mut Command, script: &str) -> Output {
        let mut child = program
            .current_dir(self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error}; see `cargo xtask with-servers true`"));
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

const NODE: &str = r#"
const Database = require("libsql");
const db = new Database("postrider.db", { timeout: 5000 });
db.exec("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)");
const send = db.prepare("INSERT OR REPLACE INTO postrider_send (endpoint, payload, ordering_key) VALUES (?, ?, 'k')");

function order(endpoint, total, end) {
  db.exec("BEGIN IMMEDIATE");
  try {
    db.prepare("INSERT INTO orders (total) VALUES (?)").run(total);
    send.run(endpoint, JSON.stringify({ total }));
    const { id, duplicate } = db.prepare("SELECT id, duplicate FROM postrider_last_send").get();
    db.exec(end);
    console.log(id, duplicate);
  } catch (error) {
    db.exec("ROLLBACK");
    console.log(error.message);
  }
}

order("shop", 1, "COMMIT");
order("shop", 2, "ROLLBACK");
order("nowhere", 3, "COMMIT");
order("shop", 4, "COMMIT");
console.log(db.prepare("SELECT total FROM orders ORDER BY id").pluck().all().join(" "));
console.log(db.prepare("PRAGMA journal_mode").get().journal_mode);
"#;

#[test]
fn a_commit_in_node_arrives_and_a_rollback_does_not() {
    let Some(modules) = node_sqlite::modules() else { return };
    let world = World::start();
    let printed = printed(&world.fed(Command::new("node").arg("-").env("NODE_PATH", modules), NODE));
    let refused = "42704 endpoint: there is no endpoint of this name";
    assert_eq!(printed.lines().collect::<Vec<_>>(), ["1 0", "2 0", refused, "2 0", "1 4", "wal"]);
    world.until_received(&[r#"{"total":1}"#, r#"{"total":4}"#]);
    world.node.until(2, "completed");
}

const EVENTS: &str = r#"
import sqlite3
db = sqlite3.connect("postrider.db", isolation_level=None)
for n, end in [(1, "COMMIT"), (2, "ROLLBACK"), (3, "COMMIT")]:
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT OR IGNORE INTO postrider_publish (event_type, payload, ordering_key) VALUES ('orders', ?, 'k')", [f"[{n}]"])
    db.execute(end)
try:
    db.execute("INSERT OR IGNORE INTO postrider_publish (event_type, payload) VALUES ('order', '[4]')")
except sqlite3.IntegrityError as error:
    print(error)
"#;

#[test]
fn an_event_published_in_python_arrives_at_everybody_who_wants_it() {
    let world = World::start();
    world.home.json(&["event", "create", "orders"]);
    world.home.json(&["event", "subscribe", "orders", "shop"]);
    world.home.json(&["event", "subscribe", "*", "shop", "--template", r#"{"n":"{{/0}}"}"#]);
    let printed = printed(&world.python(EVENTS));
    assert_eq!(printed, "42704 event_type: there is no event type of this name\n");
    world.until_received(&["[1]", r#"{"n": 1}"#, "[3]", r#"{"n": 3}"#]);
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
    send(conflict, endpoint="shop", payload="1" * 1048577)
    send(conflict, endpoint="shop", payload=f'"{conflict}"', idempotency_key="first")
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
    world.until_received(&["\"\""]);
}

#[test]
fn the_shell_of_sqlite_sends_too() {
    let world = World::start();
    let script = "BEGIN IMMEDIATE;
        INSERT INTO postrider_send (endpoint, payload, headers) VALUES ('shop', '{\"a\": 1}', '{\"x-a\": \"b\"}');
        SELECT id, duplicate FROM postrider_last_send;
        COMMIT;
        INSERT INTO postrider_send (endpoint, payload) VALUES ('nowhere', '1');";
    let output = world.fed(Command::new("sqlite3").arg("postrider.db"), script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1|0\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("42704 endpoint: there is no endpoint of this name"), "{said}");
    world.until_received(&[r#"{"a": 1}"#]);
}

/// Everything that SQLite reads of the schema, it reads with the first statement; so this would fail as a whole.
#[test]
fn the_oldest_sqlite_sends_and_reads_and_still_knows_the_applications_tables() {
    let Some(library) = old_sqlite::built() else { return };
    let world = World::start();
    let old = |script: &str| {
        let script = format!("import sqlite3\nprint(sqlite3.sqlite_version)\n{script}");
        printed(&world.fed(Command::new("python3").arg("-").env("LD_LIBRARY_PATH", &library), &script))
    };
    let expected = format!("{}\n(1, 0) (2, 0) (2, 0)\n[(1,), (3,)]\n", old_sqlite::VERSION);
    assert_eq!(old(PYTHON), expected);
    world.until_received(&[r#"{"total": 1}"#, r#"{"total": 3}"#]);
    world.node.until(2, "completed");
    let read = r#"
db = sqlite3.connect("postrider.db", isolation_level=None)
views = [name for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
for view in views:
    db.execute(f"SELECT * FROM {view}").fetchall()
print(len(views) > 10, db.execute("SELECT state FROM postrider_messages").fetchall())
db.execute("ALTER TABLE orders RENAME COLUMN total TO sum")
try:
    db.execute("""INSERT INTO postrider_send (endpoint, payload, headers, options, correlation_id, scheduled_at, ordering_key)
        VALUES ('shop', '1', '{"a": "b"}', '{"timeout": 1.5, "url_suffix": "/<"}',
                'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2030-01-01T00:00:00.5+01:00', 'é')""")
except sqlite3.IntegrityError as error:
    print(error)
"#;
    let lines = [
        old_sqlite::VERSION,
        "True [('completed',), ('completed',)]",
        "22023 options.url_suffix: has a path or query that cannot be sent: invalid uri character",
    ];
    assert_eq!(old(read).lines().collect::<Vec<_>>(), lines);
    world.home.json(&["event", "create", "orders"]);
    world.home.json(&["event", "subscribe", "orders", "shop"]);
    let refused = format!("{}\n42704 event_type: there is no event type of this name\n", old_sqlite::VERSION);
    assert_eq!(old(EVENTS), refused);
    world.until_received(&[r#"{"total": 1}"#, r#"{"total": 3}"#, "[1]", "[3]"]);
}
