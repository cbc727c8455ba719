//! JSON Lines that survive crashes, rotation and other writers.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use postrider::message::Message;
use postrider::sink::{Environment, Sink, connect};
use postrider::verdict::{Class, Failure};
use serde_json::{Value, json};

use super::support::*;

fn below(root: &Path) -> Environment {
    Environment { file_root: Some(root.to_owned()), ..Environment::default() }
}

fn sink(root: &Path, config: Value) -> Arc<dyn Sink> {
    connect(&endpoint("file", config), &below(root)).unwrap()
}

async fn failure_of(root: &Path, path: &str) -> Failure {
    match connect(&endpoint("file", json!({"path": path})), &below(root)) {
        Ok(sink) => sink.deliver(&delivery(message(1, "{}"))).await.failed(),
        Err(refused) => refused.failed(),
    }
}

fn ids(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_line_tells_all_about_the_message() {
    let root = tempfile::tempdir().unwrap();
    let message = Message {
        correlation_id: Some("67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()),
        ordering_key: Some("a \"quoted\"\nkey".to_owned()),
        event_type: Some("order.created".to_owned()),
        headers: [("X-A".to_owned(), "b".to_owned())].into(),
        ..message(42, "{\n  \"a\": \"x\\ny\",\r\n  \"b\": 1.0\n}")
    };
    sink(root.path(), json!({"path": "a.jsonl"})).deliver(&delivery(message)).await.unwrap();
    let expected = concat!(
        r#"{"id":"msg_k3x9_42","endpoint":"orders","attempt":1,"created_at":"2026-03-04T05:06:07.123456Z","#,
        r#""correlation_id":"67e55044-10b1-426f-9247-bb680e5fe0c8","ordering_key":"a \"quoted\"\nkey","#,
        r#""event_type":"order.created","content_type":"application/json","headers":{"X-A":"b"},"#,
        r#""payload":{   "a": "x\ny",    "b": 1.0 }}"#,
        "\n"
    );
    assert_eq!(std::fs::read_to_string(root.path().join("a.jsonl")).unwrap(), expected);
}

/// A pipe takes what is written, and nobody can sync it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_is_written_and_not_synced_is_not_delivered() {
    let root = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(root.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let failure = failure_of(root.path(), "pipe").await;
    assert_eq!(failure.class, Class::Retryable, "{failure:?}");
}

#[tokio::test]
async fn a_line_that_a_crash_cut_off_does_not_spoil_the_next() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.jsonl");
    std::fs::write(&path, "{\"id\":\"old\"}\n{\"id\":\"to").unwrap();
    sink(root.path(), json!({"path": "a.jsonl"})).deliver(&delivery(message(1, "{}"))).await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1], "{\"id\":\"to");
    assert_eq!(serde_json::from_str::<Value>(lines[2]).unwrap()["id"], "msg_k3x9_1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_is_put_aside_and_nothing_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let sink = sink(root.path(), json!({"path": "logs/a.jsonl", "rotate_size": 1024}));
    for round in 0..5 {
        let sent: Vec<_> = (0..20).map(|number| delivery(message(round * 20 + number, "{}"))).collect();
        assert!(join_all(sent.iter().map(|sent| sink.deliver(sent))).await.iter().all(Result::is_ok));
    }
    let mut seen = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(root.path().join("logs")).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.metadata().unwrap().len() <= 1024, "{}", path.display());
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("a.jsonl"));
        seen.extend(ids(&path));
        files += 1;
    }
    assert!(files > 5, "{files} files");
    assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>().len()), (100, 100));
}

#[tokio::test]
async fn a_line_larger_than_a_file_may_be_gets_a_file_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let sink = sink(root.path(), json!({"path": "a.jsonl", "rotate_size": 1024}));
    for number in 0..3 {
        sink.deliver(&delivery(message(number, format!("\"{}\"", "x".repeat(3000))))).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 3);
    assert_eq!(ids(&root.path().join("a.jsonl")), ["msg_k3x9_2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_with_the_same_file_do_not_mix_their_lines() {
    let root = tempfile::tempdir().unwrap();
    let link = tempfile::tempdir().unwrap();
    let other_name = link.path().join("root");
    std::os::unix::fs::symlink(root.path(), &other_name).unwrap();
    let sinks = [
        sink(root.path(), json!({"path": "a.jsonl"})),
        sink(root.path(), json!({"path": "a.jsonl", "timeout": 3})),
        sink(&other_name, json!({"path": "a.jsonl"})),
    ];
    let sent: Vec<_> = (0..90).map(|number| delivery(message(number, vec![b'x'; 5000]))).collect();
    let deliveries = sent.iter().zip(sinks.iter().cycle()).map(|(sent, sink)| sink.deliver(sent));
    assert!(join_all(deliveries).await.iter().all(Result::is_ok));
    assert_eq!(ids(&root.path().join("a.jsonl")).into_iter().collect::<BTreeSet<_>>().len(), 90);
}

#[tokio::test]
async fn a_file_that_was_moved_or_removed_is_begun_anew() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("deep/er/a.jsonl");
    let sink = sink(root.path(), json!({"path": "deep/er/a.jsonl"}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    std::fs::rename(&path, root.path().join("moved")).unwrap();
    sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
    assert_eq!(ids(&path), ["msg_k3x9_2"]);
    std::fs::remove_dir_all(root.path().join("deep")).unwrap();
    sink.deliver(&delivery(message(3, "{}"))).await.unwrap();
    assert_eq!(ids(&path), ["msg_k3x9_3"]);
    assert_eq!(ids(&root.path().join("moved")), ["msg_k3x9_1"]);
}

#[tokio::test]
async fn links_that_lead_out_of_the_root_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("target"), "").unwrap();
    std::os::unix::fs::symlink(outside.path(), root.path().join("dir")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("target"), root.path().join("file")).unwrap();
    for path in ["dir/a.jsonl", "dir/new/a.jsonl", "file"] {
        let failure = failure_of(root.path(), path).await;
        assert_eq!(failure.class, Class::Permanent, "{path}");
        assert_says(&failure, "leads out of --file-root");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(outside.path().join("target")).unwrap(), "");
}

#[tokio::test]
async fn a_link_inside_the_root_is_followed() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("real")).unwrap();
    std::os::unix::fs::symlink(root.path().join("real"), root.path().join("link")).unwrap();
    sink(root.path(), json!({"path": "link/a.jsonl"})).deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(ids(&root.path().join("real/a.jsonl")), ["msg_k3x9_1"]);
}

#[tokio::test]
async fn a_node_without_a_root_writes_no_files() {
    let failure =
        connect(&endpoint("file", json!({"path": "a"})), &Environment::default()).map(drop).failed();
    assert_eq!(failure.class, Class::Permanent);
    assert_says(&failure, "--file-root");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_retryable() {
    let failure = failure_of(Path::new("/dev"), "full").await;
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "no space left on device");
}
