//! The other process of a bench, as this one sees it: one command line in, one answer line out.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::load::{HttpLoad, LoadResult};
use crate::failure::CommandError;

/// The child ends when its stdin closes, so it cannot outlive this process.
pub(super) struct Partner {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    port: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(super) enum ReceiverOrder {
    /// Forget what arrived.
    Reset,
    /// Answer when this many arrived at `/count`, or when time is up.
    Await {
        count: u64,
        timeout_seconds: f64,
    },
    /// How long what came to `/latency` was under way.
    Latencies,
    HttpLoad(HttpLoad),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) port: u16,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ArrivedCount {
    pub(super) count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Latencies {
    pub(super) micros: BTreeMap<u64, i64>,
}

impl Partner {
    pub(super) async fn start() -> Result<Self, CommandError> {
        let program = std::env::current_exe()
            .map_err(|error| CommandError::failed(format!("cannot find this program's file: {error}")))?;
        let mut child = Command::new(program)
            .arg("bench-receiver")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| CommandError::failed(format!("cannot start the receiver process: {error}")))?;
        let input = child.stdin.take().expect("stdin is piped");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut partner = Self { _child: child, input, output, port: 0 };
        partner.port = partner.answer::<Ready>().await?.port;
        Ok(partner)
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) async fn reset(&mut self) -> Result<(), CommandError> {
        self.ask::<ArrivedCount>(&ReceiverOrder::Reset).await.map(|_| ())
    }

    /// Err when fewer arrived in time.
    pub(super) async fn until_counted(&mut self, count: u64, patience: Duration) -> Result<(), CommandError> {
        let order = ReceiverOrder::Await { count, timeout_seconds: patience.as_secs_f64() };
        let counted = self.ask::<ArrivedCount>(&order).await?.count;
        if counted < count {
            let seconds = patience.as_secs();
            return Err(CommandError::failed(format!(
                "only {counted} of {count} arrived within {seconds} s"
            )));
        }
        Ok(())
    }

    pub(super) async fn latencies(&mut self) -> Result<BTreeMap<u64, i64>, CommandError> {
        self.ask::<Latencies>(&ReceiverOrder::Latencies).await.map(|latencies| latencies.micros)
    }

    pub(super) async fn load(&mut self, load: HttpLoad) -> Result<LoadResult, CommandError> {
        self.ask(&ReceiverOrder::HttpLoad(load)).await
    }

    async fn ask<T: DeserializeOwned>(&mut self, order: &ReceiverOrder) -> Result<T, CommandError> {
        let mut line = serde_json::to_string(order).expect("an order becomes JSON");
        line.push('\n');
        self.input
            .write_all(line.as_bytes())
            .await
            .map_err(|error| CommandError::failed(format!("the receiver process is gone: {error}")))?;
        self.answer().await
    }

    async fn answer<T: DeserializeOwned>(&mut self) -> Result<T, CommandError> {
        let gone = || CommandError::failed("the receiver process ended early");
        let line = self.output.next_line().await.map_err(|_| gone())?.ok_or_else(gone)?;
        serde_json::from_str(&line)
            .map_err(|error| CommandError::failed(format!("the receiver process said {line:?}: {error}")))
    }
}
