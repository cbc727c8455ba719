//! No secret is ever told again: known ones are planted wherever there may be one, everything is made to work and to
//! fail, and all that comes out is searched for them.

mod parrot;
mod planted;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use test_servers::brokers::PASSWORD;
use test_servers::postgres::Postgres;

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::Receiver;
use planted::SecretPlace;

/// What nobody may say again.
const SECRETS: [(&str, &str); 30] = [
    ("a bearer token", "leak-bearer-1"),
    ("a basic password", "leak-basic-2"),
    // shop:leak-basic-2
    ("a basic password in base64", "c2hvcDpsZWFrLWJhc2ljLTI"),
    ("a signing secret", "bGVhay1zaWduaW5nLXNlY3JldC1vZi0zMi1ieXRlcyEh"),
    ("a header of an endpoint", "leak-api-key-3"),
    ("a secret from the environment", "leak-env-4"),
    ("a secret from the environment that cannot be sent", "leak-env-bad-5"),
    ("a secret from a file", "leak-file-6"),
    ("a password in a URL", "leak-userinfo-7"),
    ("a secret under a mistyped key", "leak-typo-8"),
    ("a secret of the wrong type", "leak-array-9"),
    ("a signing secret that is none", "leak-no-key-10"),
    ("a key for TLS", "leak-tls-11"),
    ("a password of the store", "leak-store-12"),
    ("a header for the collector", "leak-otlp-13"),
    ("a secret in a config file", "leak-toml-14"),
    ("a changed token", "leak-altered-15"),
    ("a client secret", "leak-client-18"),
    // shop:leak-client-18
    ("a client secret in base64", "c2hvcDpsZWFrLWNsaWVudC0x"),
    ("an access token", "leak-access-19"),
    ("a secret access key", "leak-access-key-20"),
    ("a session token", "leak-session-21"),
    ("a password for a proxy", "leak-proxy-22"),
    // shop:leak-proxy-22
    ("a password for a proxy in base64", "c2hvcDpsZWFrLXByb3h5LTIy"),
    ("a planted secret", "leak-planted"),
    ("a planted secret in base64", "bGVhay1wbGFudGVk"),
    // After ten bytes: the user's name and a colon.
    ("a planted password in base64", "OmxlYWstcGxhbnRl"),
    ("a planted seed", planted::SEED),
    ("the password of a broker", PASSWORD),
    // All keys of this kind begin like this.
    ("the key of a broker's client", "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg"),
];

/// What is the sender's: shown with its message, and nowhere else.
const OF_MESSAGES: [(&str, &str); 2] =
    [("a payload", "leak-payload-16"), ("a header of a message", "leak-message-header-17")];

/// What was said, where, and which of it should not have been.
#[derive(Default)]
struct Search {
    found: Vec<String>,
    searched: usize,
}

impl Search {
    fn look(&mut self, place: &str, text: &str, secrets: &[(&str, &str)]) {
        self.searched += 1;
        for (name, secret) in secrets.iter().filter(|(_, secret)| text.contains(secret)) {
            let at = text.find(secret).unwrap_or_default();
            let around: String =
                text[..at].chars().rev().take(120).collect::<Vec<_>>().into_iter().rev().collect();
            self.found.push(format!("{place} tells {name}: …{around}{secret}…"));
        }
    }

    /// Where even messages have no place.
    fn look_closely(&mut self, place: &str, text: &str) {
        self.look(place, text, &SECRETS);
        self.look(place, text, &OF_MESSAGES);
    }

    fn output(&mut self, arguments: &[&str], output: &Output) {
        let place = format!("postrider {}", arguments.join(" "));
        self.look(&place, &String::from_utf8_lossy(&output.stdout), &SECRETS);
        self.look(&place, &String::from_utf8_lossy(&output.stderr), &SECRETS);
    }

    #[track_caller]
    fn end(self, at_least: usize) {
        assert!(self.searched >= at_least, "only {} things were searched", self.searched);
        assert!(self.found.is_empty(), "\n{}", self.found.join("\n"));
    }
}

/// Every endpoint with a secret, by name: those whose receiver answers, and one whose receiver is not there.
fn endpoints(url: &str) -> Vec<Value> {
    let endpoint = |name: &str, url: &str, mut config: Value| {
        config["url"] = url.into();
        json!({ "name": name, "protocol": "http", "config": config, "retry_policy": { "max_attempts": 1 } })
    };
    let bearer = |token: &str| json!({ "auth": { "type": "bearer", "token": token } });
    let basic = json!({ "auth": { "type": "basic", "username": "shop", "password": "leak-basic-2" } });
    let signed = json!({ "signing_secrets": ["whsec_bGVhay1zaWduaW5nLXNlY3JldC1vZi0zMi1ieXRlcyEh"] });
    let oauth2 = |token_url: &str| {
        let token_url = format!("{url}/{token_url}");
        let (client_id, client_secret) = ("shop", "leak-client-18");
        json!({ "auth": { "type": "oauth2", "token_url": token_url, "client_id": client_id, "client_secret": client_secret } })
    };
    let sigv4 = json!({ "auth": {
        "type": "aws_sigv4", "access_key_id": "AKIDEXAMPLE", "secret_access_key": "leak-access-key-20",
        "region": "eu-central-1", "service": "execute-api", "session_token": "leak-session-21",
    } });
    let proxy = json!({ "url": "http://127.0.0.1:9", "username": "shop", "password": "leak-proxy-22" });
    vec![
        endpoint("oauth2", url, oauth2("token")),
        endpoint("oauth2-refused", &format!("{url}/401"), oauth2("token")),
        endpoint("oauth2-without-token", url, oauth2("no-token")),
        endpoint("sigv4", url, sigv4.clone()),
        endpoint("sigv4-refused", &format!("{url}/500"), sigv4),
        endpoint("proxy-nowhere", url, json!({ "proxy": proxy })),
        endpoint("bearer", url, bearer("leak-bearer-1")),
        endpoint("bearer-nowhere", "http://127.0.0.1:9/hook", bearer("leak-bearer-1")),
        endpoint("bearer-refused", &format!("{url}/401"), bearer("leak-bearer-1")),
        endpoint("basic", url, basic.clone()),
        endpoint("basic-refused", &format!("{url}/500"), basic),
        endpoint("signed", url, signed),
        endpoint("headers", url, json!({ "headers": { "x-api-key": "leak-api-key-3" } })),
        endpoint("environment", url, bearer("${POSTRIDER_SECRET_TOKEN}")),
        endpoint("environment-bad", url, bearer("${POSTRIDER_SECRET_BAD}")),
        endpoint("environment-missing", url, bearer("${POSTRIDER_SECRET_MISSING}")),
        endpoint("file", url, bearer("file:token")),
        endpoint("file-missing", url, bearer("file:none")),
    ]
}

/// Configs that are refused, each with a secret in it.
fn refused_configs() -> Vec<Value> {
    let config = |config: Value| json!({ "name": "refused", "protocol": "http", "config": config });
    let url = "https://example.com/";
    vec![
        config(json!({ "url": "https://me:leak-userinfo-7@example.com/" })),
        config(json!({ "url": "leak-userinfo-7" })),
        config(json!({ "url": url, "pasword": "leak-typo-8" })),
        config(json!({ "url": url, "auth": { "type": "bearer", "tokn": "leak-typo-8" } })),
        config(json!({ "url": url, "auth": { "type": "bearer", "token": ["leak-array-9"] } })),
        config(json!({ "url": url, "auth": { "type": "bearer", "token": "leak-array-9 with spaces" } })),
        config(json!({ "url": url, "auth": "leak-array-9" })),
        config(json!({ "url": url, "auth": { "type": "oauth2", "client_secret": "leak-client-18" } })),
        config(json!({ "url": url, "auth": { "type": "oauth2", "client_secret": ["leak-client-18"] } })),
        config(
            json!({ "url": url, "auth": { "type": "aws_sigv4", "secret_access_key": "leak-access-key-20 x" } }),
        ),
        config(json!({ "url": url, "proxy": "http://shop:leak-proxy-22@127.0.0.1:9" })),
        config(json!({ "url": url, "proxy": { "url": "http://shop:leak-proxy-22@127.0.0.1:9" } })),
        config(json!({ "url": url, "proxy": { "url": "http://127.0.0.1:9", "password": "leak-proxy-22" } })),
        config(json!({ "url": url, "signing_secrets": ["whsec_leak-no-key-10"] })),
        config(json!({ "url": url, "signing_secrets": "leak-no-key-10" })),
        config(json!({ "url": url, "headers": { "x-api-key": "leak-api-key-3\n" } })),
        config(json!({ "url": url, "tls": { "key": "leak-tls-11" } })),
        config(json!({ "url": url, "tls": { "ca": "leak-tls-11" } })),
        config(json!({ "url": url, "tls": { "ca": private_key("leak-tls-11") } })),
        config(json!({ "url": url, "tls": { "cert": "x", "key": private_key("leak-tls-11") } })),
    ]
}

/// For every place of a secret in the tables of keys: itself and references to it, at a receiver that is not there, at
/// one that refuses it, and at one that repeats it. Those that a broker knows are also taken by it.
fn planted_endpoints(receiver: u16) -> Vec<Value> {
    let endpoint = |place: &SecretPlace, how: &str, config: Value| {
        let name = format!("{}-{how}", place.name());
        json!({ "name": name, "protocol": place.protocol.as_str(), "config": config, "retry_policy": { "max_attempts": 1 } })
    };
    let mut endpoints = Vec::new();
    for place in SecretPlace::all() {
        let broker = planted::broker(place.protocol).and_then(|kind| kind.shared());
        let ports = match broker {
            Some(listeners) => {
                let port = listeners.password;
                vec![("nowhere", 9), ("wrong", port), ("repeated", parrot::before(port))]
            }
            None => vec![("nowhere", 9), ("answered", receiver)],
        };
        for (form, text) in place.texts() {
            for (receiver, port) in &ports {
                endpoints.push(endpoint(&place, &format!("{form}-{receiver}"), place.config(*port, &text)));
            }
        }
        let right = broker.and_then(|listeners| place.right(listeners));
        endpoints.extend(right.map(|config| endpoint(&place, "right", config)));
    }
    endpoints
}

/// Configs of `protocol` that are refused.
fn refused_planted() -> Vec<Value> {
    let endpoint =
        |protocol: &str, config| json!({ "name": "refused", "protocol": protocol, "config": config });
    let refused = |place: SecretPlace| {
        let protocol = place.protocol.as_str();
        place.refused().into_iter().map(move |config| endpoint(protocol, config))
    };
    SecretPlace::all().into_iter().flat_map(refused).collect()
}

fn private_key(text: &str) -> String {
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}

/// What people read by SQL, without configs.
const RELATIONS: [&str; 7] =
    ["endpoint_status", "queue", "dlq", "archive", "attempts", "messages", "settings"];

/// Makes a node do all it can with secrets, and searches whatever comes out of it.
fn search_everything(store: Option<&str>, formats: [&str; 2], read: impl Fn(&Home, &[&str]) -> String) {
    let mut search = Search::default();
    let home = Home::new();
    secrets_folder(&home);
    let spans: Arc<Mutex<String>> = Arc::default();
    let kept = spans.clone();
    let collector = Receiver::start(move |received| {
        *kept.lock().expect("nobody panics here") += &String::from_utf8_lossy(&received.body);
        Some(200)
    });
    let collector = format!("http://{}", collector.address());
    // It repeats all that it was sent, whatever it makes of it.
    let receiver = Receiver::talking(|received| {
        let status = match received.path.rsplit('/').next() {
            Some("401") => 401,
            Some("500") => 500,
            _ => 200,
        };
        let headers: BTreeMap<_, _> = received.headers.into_iter().collect();
        let repeated = json!({ "you sent": headers }).to_string();
        match received.path.rsplit('/').next() {
            Some("token") => Some((200, json!({ "access_token": "leak-access-19" }).to_string())),
            Some("no-token") => {
                Some((401, json!({ "error": "no", "error_description": repeated }).to_string()))
            }
            _ => Some((status, repeated)),
        }
    });
    let places = SecretPlace::all();
    let variables: Vec<_> = places.iter().map(|place| (place.variable(), place.secret())).collect();
    let planted = planted_endpoints(receiver.address().port());
    let mut environment = vec![
        ("POSTRIDER_LOG", "debug"),
        ("POSTRIDER_SECRET_TOKEN", "leak-env-4"),
        ("POSTRIDER_SECRET_BAD", "leak-env-bad-5\u{1}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=leak-otlp-13"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    environment.extend(store.map(|url| ("POSTRIDER_STORE", url)));
    environment.extend(variables.iter().map(|(name, secret)| (&**name, *secret)));
    for format in formats {
        let node = home.start_in(
            &environment,
            &["--allow-internal", "--migrate", "--secrets-dir", "secrets", "--log-format", format],
        );
        drive(&mut search, &node, &receiver.url());
        deliver_planted(&mut search, &node, &planted);
        assert!(repeated(&node), "what receivers repeat is kept, or nothing is searched");
        commands(&mut search, &home, &environment, &receiver.url());
        eventually(Duration::from_secs(30), "spans", || {
            spans.lock().expect("nobody panics here").contains("postrider.settle").then_some(())
        });
        search.look_closely("a trace", &spans.lock().expect("nobody panics here"));
        search.look_closely("the event log", &read(&home, &["event_log"]));
        search.look("SQL", &read(&home, &RELATIONS), &SECRETS);
        let log = node.written();
        assert!(log.contains("is in the DLQ") && log.contains("DEBUG"), "{log}");
        search.look_closely(&format!("the {format} log"), &log);
    }
    search.end(200);
}

/// The answer to a message with a secret is kept, with the secret masked.
fn repeated(node: &Node) -> bool {
    let id = node.send("bearer-refused", &[], "{}");
    let story = node.until(id, "dead").to_string();
    story.contains("you sent") && story.contains("Bearer ***")
}

fn secrets_folder(home: &Home) {
    let folder = home.path().join("secrets");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("token"), "leak-file-6\n").expect("a file");
    for place in SecretPlace::all() {
        std::fs::write(folder.join(place.name()), place.secret()).expect("a file");
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).expect("a private folder");
}

/// Over HTTP: create, refuse, send, look.
fn drive(search: &mut Search, node: &Node, url: &str) {
    let mut say = |place: &str, body: &[u8], secrets: &[(&str, &str)]| {
        search.look(place, &String::from_utf8_lossy(body), secrets);
    };
    let settings = json!({ "capture_response": "all", "attempt_log": "all" });
    let configured = node.client().send("PUT", "/v1/config", &[], settings.to_string().as_bytes());
    configured.expect("an answer").expect(200);
    for endpoint in endpoints(url) {
        // On the second round it is there already, which is said.
        let answer = node.post("/v1/endpoints", &[], endpoint.to_string().as_bytes());
        assert!([201, 409].contains(&answer.status), "{endpoint}");
        say("creating an endpoint", &answer.body, &SECRETS);
    }
    for endpoint in refused_configs().into_iter().chain(refused_planted()) {
        let answer = node.post("/v1/endpoints", &[], endpoint.to_string().as_bytes()).expect(422);
        say(&format!("refusing {endpoint}"), &answer.body, &SECRETS);
    }
    say("listing endpoints", &node.get("/v1/endpoints").body, &SECRETS);
    for endpoint in endpoints(url) {
        let name = endpoint["name"].as_str().expect("a name");
        say(&format!("showing {name}"), &node.get(&format!("/v1/endpoints/{name}")).body, &SECRETS);
        let headers = [("postrider-header-x-mine", "leak-message-header-17")];
        let id = node.send(name, &headers, r#"{"card":"leak-payload-16"}"#);
        let failing = ["nowhere", "refused", "missing", "bad", "without-token"];
        let retried = failing.iter().any(|part| name.contains(part));
        node.until(id, if retried { "dead" } else { "completed" });
        say(&format!("the story of {name}"), &node.get(&format!("/v1/messages/{id}")).body, &SECRETS);
    }
    for path in ["/v1/dlq?limit=1000", "/v1/dlq/1", "/v1/messages?limit=100", "/v1/event-log"] {
        say(path, &node.get(path).body, &SECRETS);
    }
    for path in ["/metrics", "/readyz", "/livez", "/v1/nothing", "/v1/endpoints/nobody"] {
        say(path, &node.get(path).body, &SECRETS);
        say(path, &node.get(path).body, &OF_MESSAGES);
    }
}

/// Over HTTP, too, all at once: a broker takes its time to refuse.
fn deliver_planted(search: &mut Search, node: &Node, endpoints: &[Value]) {
    let mut say = |place: &str, name: &str, body: &[u8]| {
        search.look(&format!("{place} {name}"), &String::from_utf8_lossy(body), &SECRETS);
    };
    let names: Vec<&str> =
        endpoints.iter().map(|endpoint| endpoint["name"].as_str().expect("a name")).collect();
    for (name, endpoint) in names.iter().zip(endpoints) {
        let answer = node.post("/v1/endpoints", &[], endpoint.to_string().as_bytes());
        assert!([201, 409].contains(&answer.status), "{endpoint}: {}", String::from_utf8_lossy(&answer.body));
        say("creating", name, &answer.body);
    }
    let ids: Vec<i64> =
        names.iter().map(|name| node.send(name, &[], r#"{"card":"leak-payload-16"}"#)).collect();
    for (name, id) in names.into_iter().zip(ids) {
        let story = eventually(Duration::from_secs(60), &format!("the end of {name}"), || {
            let story = node.get(&format!("/v1/messages/{id}")).json();
            ["completed", "dead"].contains(&story["state"].as_str()?).then_some(story)
        });
        say("the story of", name, story.to_string().as_bytes());
        let shown = node.get(&format!("/v1/endpoints/{name}"));
        say("showing", name, &shown.body);
        if name.ends_with("-right") {
            assert_eq!(shown.json()["connection"]["state"], "up", "{name}: {story:#}");
        }
        if name.ends_with("password-itself-repeated") {
            let error = story["last_error"].as_str().expect("an error");
            assert!(error.contains("***"), "the broker's answer is kept, or nothing is searched: {error}");
        }
        if name.contains("-itself-") {
            say("testing", name, &node.post(&format!("/v1/endpoints/{name}/test"), &[], b"{}").body);
        }
    }
}

/// On the command line: the same, and what cannot even begin.
fn commands(search: &mut Search, home: &Home, environment: &[(&str, &str)], url: &str) {
    let mut run = |more: &[(&str, &str)], arguments: &[&str]| {
        for json in [&[][..], &["--json"]] {
            let arguments = [arguments, json].concat();
            let output = home.command(&arguments).envs(environment.iter().chain(more).copied()).output();
            search.output(&arguments, &output.expect("it ends"));
        }
    };
    run(&[], &["status"]);
    run(&[], &["endpoint", "list"]);
    run(&[], &["message", "list"]);
    run(&[], &["message", "show", "3"]);
    run(&[], &["dlq", "list"]);
    run(&[], &["dlq", "show", "1"]);
    for endpoint in endpoints(url) {
        run(&[], &["endpoint", "show", endpoint["name"].as_str().expect("a name")]);
    }
    let config = |config: Value| config.to_string();
    let altered = config(json!({ "url": url, "auth": { "type": "bearer", "token": "leak-altered-15" } }));
    run(&[], &["endpoint", "alter", "bearer", "--endpoint-config", &altered]);
    for refused in refused_configs() {
        run(
            &[],
            &["endpoint", "create", "refused", "http", "--endpoint-config", &refused["config"].to_string()],
        );
    }
    let stores = [
        "postgres://shop:leak-store-12@127.0.0.1:9/shop",
        "postgre://shop:leak-store-12@127.0.0.1:9/shop",
        "postgres://shop:leak-store-12@127.0.0.1:port/shop",
        "postgres://shop:leak-store-12@127.0.0.1:9/shop?sslmode=maybe",
        "postgres://shop:leak-store-12@127.0.0.1:9/shop?password=leak-store-12&nonsense=1",
        "sqlite:///nowhere/leak/postrider.db",
    ];
    for store in stores {
        run(&[("POSTRIDER_STORE", store)], &["status"]);
        run(&[("POSTRIDER_STORE", store)], &["serve", "--listen", "127.0.0.1:0", "--migrate"]);
    }
    let files = [
        "store = \"postgres://shop:leak-toml-14@127.0.0.1:9/shop\"\nnonsense = 1\n",
        "store = \"postgres://shop:leak-toml-14@127.0.0.1:9/shop\n",
        "store = [\"postgres://shop:leak-toml-14@127.0.0.1:9/shop\"]\n",
        "stor = \"postgres://shop:leak-toml-14@127.0.0.1:9/shop\"\n",
    ];
    for text in files {
        std::fs::write(home.path().join("bad.toml"), text).expect("a file");
        run(&[], &["serve", "--listen", "127.0.0.1:0", "--config", "bad.toml"]);
    }
    let bad_collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:leak-otlp-13@localhost:4318");
    run(&[bad_collector, ("POSTRIDER_STORE", "sqlite:other.db")], &["serve", "--listen", "127.0.0.1:0"]);
}

#[test]
fn on_sqlite_no_secret_is_told_again() {
    search_everything(None, ["json", "text"], |home, relations| rows(&home.store_file(), relations));
}

#[test]
fn on_postgresql_no_secret_is_told_again() {
    let server = Postgres::start().expect("a server of its own");
    let url = server.url().replacen("@", ":leak-store-12@", 1);
    search_everything(Some(&url), ["json", "text"], |_, relations| {
        let rows = |relation: &&str| server.query(&format!("SELECT r FROM postrider.{relation} r"));
        relations.iter().map(|relation| rows(relation).expect("a relation")).collect()
    });
    let mut search = Search::default();
    for refused in refused_configs().into_iter().chain(refused_planted()) {
        let [protocol, config] =
            ["protocol", "config"].map(|key| refused[key].to_string().replace('\'', "''"));
        let protocol = protocol.trim_matches('"');
        let created =
            server.query(&format!("SELECT postrider.create_endpoint('refused', '{protocol}', '{config}')"));
        if let Err(said) = created {
            search.look(&format!("SQL that refuses {refused}"), &said, &SECRETS);
        }
    }
    search.end(200);
}

fn rows(file: &Path, relations: &[&str]) -> String {
    let connection = rusqlite::Connection::open(file).expect("the store");
    let mut text = String::new();
    for relation in relations {
        let mut statement = connection.prepare(&format!("SELECT * FROM postrider_{relation}")).expect("SQL");
        let mut rows = statement.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            for column in 0.. {
                let Ok(value) = row.get_ref(column) else { break };
                let bytes = value.as_bytes().unwrap_or_default();
                text += &format!("{} ", String::from_utf8_lossy(bytes));
            }
        }
    }
    text
}

#[test]
fn a_leak_is_found() {
    let mut search = Search::default();
    search.look("a place", "the password is leak-basic-2, really", &SECRETS);
    search.look_closely("another place", "nothing here");
    assert_eq!(search.found, ["a place tells a basic password: …the password is leak-basic-2…"]);
}
