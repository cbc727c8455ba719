//! A `postrider serve` in another process, and what the system says about it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::failure::CommandError;
use crate::store_url::StoreUrl;

/// Clock ticks a second in /proc; the same on every Linux that Rust runs on.
const TICKS: f64 = 100.0;
const READY_WITHIN: Duration = Duration::from_secs(30);

pub(super) struct BenchNode {
    child: Child,
    pid: u32,
    pub(super) authority: String,
}

impl BenchNode {
    pub(super) async fn start(store: &StoreUrl) -> Result<Self, CommandError> {
        let failed = |error| CommandError::failed(format!("cannot start a node: {error}"));
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["serve", "--listen", "127.0.0.1:0", "--allow-internal", "--bench-route"])
            .args(["--log-format", "json"])
            // Not as an argument, where everybody on the machine could read a password.
            .env("POSTRIDER_STORE", store.secret_text())
            .env_remove("POSTRIDER_CONFIG")
            // No line for each message: the reader of the pipe would be measured, too.
            .env("POSTRIDER_LOG", "info,postrider::outcome=warn")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let pid = child.id().ok_or_else(|| CommandError::failed("the node ended at once"))?;
        let mut log = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let ready = async {
            while let Ok(Some(line)) = log.next_line().await {
                if let Some(address) = ready_address(&line) {
                    return Some(address);
                }
            }
            None
        };
        let authority = tokio::time::timeout(READY_WITHIN, ready)
            .await
            .ok()
            .flatten()
            .ok_or_else(|| CommandError::failed("the node did not become ready"))?;
        // Keep reading: a full pipe would stop the node.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Ok(Self { child, pid, authority })
    }

    /// Seconds of processor time used so far.
    pub(super) fn processor_seconds(&self) -> Result<f64, CommandError> {
        let text = self.proc_file("stat")?;
        // The name in parentheses may contain spaces; what follows it does not.
        let after = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
        let (Some(user), Some(system)) = (ticks(11), ticks(12)) else {
            return Err(CommandError::failed("/proc has no processor times of the node"));
        };
        Ok((user + system) / TICKS)
    }

    pub(super) fn megabytes(&self) -> Result<f64, CommandError> {
        self.status_megabytes("VmRSS:")
    }

    pub(super) fn megabytes_peak(&self) -> Result<f64, CommandError> {
        self.status_megabytes("VmHWM:")
    }

    pub(super) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }

    fn status_megabytes(&self, name: &str) -> Result<f64, CommandError> {
        let text = self.proc_file("status")?;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok())
            .map(|kilobytes| kilobytes / 1024.0)
            .ok_or_else(|| CommandError::failed(format!("/proc has no {name} of the node")))
    }

    fn proc_file(&self, name: &str) -> Result<String, CommandError> {
        let path = format!("/proc/{}/{name}", self.pid);
        std::fs::read_to_string(&path)
            .map_err(|error| CommandError::failed(format!("cannot read {path}: {error}")))
    }
}

fn ready_address(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    if line["message"] != "Postrider is ready" {
        return None;
    }
    Some(line["address"].as_str()?.to_owned())
}
