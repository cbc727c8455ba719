//! The API's description, and the server held against it.

use std::process::Output;

use serde_json::{Value, json};
use test_servers::postgres::Postgres;
use test_servers::schemathesis;

use crate::node::Home;
use crate::receiver::Receiver;

/// What random requests are made of besides what the description says.
const HOOKS: &str = include_str!("description_hooks.py");
const CASES_MIN: u32 = 300;
/// Seconds for all of it; whatever is not tried by then is left out.
const PATIENCE: &str = "75";

/// One line for each operation, parameter, body and answer, and for each field of a shape.
fn outline(document: &Value) -> String {
    let mut lines = Vec::new();
    for (path, operations) in entries(&document["paths"]) {
        for (method, operation) in entries(operations) {
            lines.push(format!("{} {path}: {}", method.to_uppercase(), text(&operation["summary"])));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
                lines.push(format!("  {place} {name}: {}", shape(&parameter["schema"])));
            }
            for (media, content) in entries(&operation["requestBody"]["content"]) {
                lines.push(format!("  takes {media}: {}", shape(&content["schema"])));
            }
            let answers: Vec<String> = entries(&operation["responses"])
                .map(|(status, answer)| {
                    let contents: Vec<String> = entries(&answer["content"])
                        .map(|(media, content)| format!(" {media} {}", shape(&content["schema"])))
                        .collect();
                    format!("{status}{}", contents.concat())
                })
                .collect();
            lines.push(format!(
                "  answers {}",
                answers.join(", ").replace(" application/problem+json Problem", "")
            ));
        }
    }
    for (name, schema) in entries(&document["components"]["schemas"]) {
        lines.push(format!("{name}: {}", shape(schema)));
    }
    lines.join("\n")
}

/// A schema in one line.
fn shape(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return name.to_owned();
    }
    for (together, with) in [("allOf", " + "), ("oneOf", " | ")] {
        if let Some(parts) = schema[together].as_array() {
            return parts.iter().map(shape).collect::<Vec<_>>().join(with);
        }
    }
    if let Some(choices) = schema["enum"].as_array() {
        return choices
            .iter()
            .map(|choice| choice.to_string().replace('"', ""))
            .collect::<Vec<_>>()
            .join("|");
    }
    let kind = match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join("|"),
        _ => "anything".to_owned(),
    };
    let required: Vec<String> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    let fields: Vec<String> = entries(&schema["properties"])
        .map(|(name, of)| format!("{name}{}: {}", if required.contains(name) { "" } else { "?" }, shape(of)))
        .collect();
    match (kind.as_str(), fields.is_empty()) {
        ("object", false) => format!("{{ {} }}", fields.join(", ")),
        ("array", _) => format!("[{}]", shape(&schema["items"])),
        _ => schema["format"].as_str().map_or(kind.clone(), |format| format!("{kind} ({format})")),
    }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_description_says_every_route_with_all_its_answers() {
    let home = Home::new();
    let document = home.start().get("/v1/openapi.json").expect(200).json();
    assert_eq!(document["openapi"], "3.1.0");
    insta::assert_snapshot!(outline(&document));
}

#[test]
fn thousands_of_requests_by_the_description_meet_no_surprise_on_sqlite() {
    let home = Home::new();
    home.json(&["migrate"]);
    meets_no_surprise(&home, &[], "coverage,fuzzing,stateful");
}

#[test]
fn thousands_of_requests_by_the_description_meet_no_surprise_on_postgresql() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let store = ["--store", &server.url()];
    home.json(&[&["migrate"], &store[..]].concat());
    meets_no_surprise(&home, &store, "coverage");
}

/// No error of the server, no answer that is not described, nothing accepted that the description forbids.
fn meets_no_surprise(home: &Home, store: &[&str], phases: &str) {
    let Some(mut command) = schemathesis::command() else { return };
    let token = home.json(&[&["token", "create", "schemathesis", "admin"], store].concat());
    let authorization = format!("authorization: Bearer {}", token["token"].as_str().expect("a token"));
    let node = home.start_with(&[&["--allow-internal"], store].concat());
    let bearer = [("authorization", authorization.trim_start_matches("authorization: "))];
    let receiver = Receiver::start(|received| Some(if received.body.len() % 3 == 0 { 400 } else { 200 }));
    for name in ["shop", "paused"] {
        let endpoint = json!({ "name": name, "protocol": "http", "config": { "url": receiver.url() } });
        node.post("/v1/endpoints", &bearer, endpoint.to_string().as_bytes()).expect(201);
        for body in ["{}", "1", "null"] {
            node.post(&format!("/v1/endpoints/{name}/messages"), &bearer, body.as_bytes()).expect(202);
        }
    }
    std::fs::write(home.path().join("hooks.py"), HOOKS).expect("a file");
    let Output { status, stdout, stderr } = command
        .current_dir(home.path())
        .env("SCHEMATHESIS_HOOKS", "hooks.py")
        .args(["run", &format!("http://{}/v1/openapi.json", node.address), "--header", &authorization])
        // A tail never ends; and whoever revokes the token that all of this is done with is left out.
        .args(["--exclude-path", "/v1/tail", "--exclude-operation-id", "revoke_token"])
        .args(["--phases", phases, "--max-time", PATIENCE, "--max-examples", "40"])
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args(["--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"])
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{said}{}", String::from_utf8_lossy(&stderr));
    let cases = said.lines().find_map(|line| line.trim().split_once(" generated")?.0.parse::<u32>().ok());
    // Thousands, unless the machine has something else to do meanwhile.
    assert!(cases.expect("a number of cases") >= CASES_MIN, "{said}");
    node.get("/livez").expect(200);
}
