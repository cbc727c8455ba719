//! Settings of the store: one table of names, defaults and ranges, and the checked values.

use std::time::Duration;

use serde::Serialize;

use crate::error::Invalid;

pub const MAX_ATTEMPTS_MAX: u32 = 1001;
pub const DELAY_MAX_SECONDS: u32 = 86_400;

/// What the store's settings say, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub default_max_attempts: u32,
    pub retry_base_delay: Duration,
    pub retry_max_delay: Duration,
    pub retry_increment: Duration,
    pub circuit_breaker_threshold: u32,
    pub circuit_breaker_cooldown: Duration,
    pub node_lease: Duration,
    pub stale_recovery_timeout: Duration,
    /// 0 is off.
    pub max_queue_size: u64,
    pub max_payload_bytes: u64,
    pub max_headers_bytes: u64,
    pub max_key_bytes: u64,
    pub max_batch_messages: u64,
    pub max_fanout: u64,
    pub dlq_retention_days: u32,
    /// 0 is off.
    pub dlq_max_bytes: u64,
    pub archive: ArchiveMode,
    pub archive_retention_months: u32,
    pub cleanup_interval: Duration,
    pub attempt_log: AttemptLog,
    pub capture_response: CaptureResponse,
    pub response_body_max_bytes: u64,
    pub idempotency_retention: Duration,
    pub event_log_retention_days: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveMode {
    On,
    /// Everything but payload and headers.
    Metadata,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptLog {
    All,
    Failures,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureResponse {
    All,
    Failures,
    Off,
}

/// One row of the table of settings.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub unit: &'static str,
    pub meaning: &'static str,
}

#[derive(Debug)]
pub enum Kind {
    Whole { min: u64, max: u64 },
    Choice(&'static [&'static str]),
}

const BYTES_MAX: u64 = 1 << 40;

const fn whole(
    name: &'static str,
    default: &'static str,
    min: u64,
    max: u64,
    unit: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting { name, kind: Kind::Whole { min, max }, default, unit, meaning }
}

const fn choice(
    name: &'static str,
    default: &'static str,
    choices: &'static [&'static str],
    meaning: &'static str,
) -> Setting {
    Setting { name, kind: Kind::Choice(choices), default, unit: "", meaning }
}

#[rustfmt::skip]
pub const TABLE: &[Setting] = &[
    whole("default_max_attempts", "11", 0, MAX_ATTEMPTS_MAX as u64, "", "attempts before a message is dead; 0 is no limit"),
    whole("retry_base_delay", "10", 1, 3600, "s", "delay before the first retry"),
    whole("retry_max_delay", "300", 1, DELAY_MAX_SECONDS as u64, "s", "no retry waits longer"),
    whole("retry_increment", "30", 1, 3600, "s", "what linear backoff adds each time"),
    whole("circuit_breaker_threshold", "10", 1, 1000, "", "consecutive failures that open a circuit"),
    whole("circuit_breaker_cooldown", "30", 5, 3600, "s", "how long an open circuit rests before a probe"),
    whole("node_lease", "15", 5, 300, "s", "a node silent for longer loses its claims"),
    whole("stale_recovery_timeout", "300", 60, 3600, "s", "bounds one attempt on a node that lives but does not settle"),
    whole("max_queue_size", "1000000", 0, 1_000_000_000_000, "", "pending and processing messages; 0 is no limit"),
    whole("max_payload_bytes", "1048576", 1024, 100 << 20, "bytes", "largest payload"),
    whole("max_headers_bytes", "16384", 0, 1 << 20, "bytes", "largest headers of a message, names and values added up"),
    whole("max_key_bytes", "256", 1, 2048, "bytes", "longest ordering or idempotency key"),
    whole("max_batch_messages", "10000", 1, 1_000_000, "", "messages in one batch"),
    whole("max_fanout", "10000", 1, 1_000_000, "", "messages that one event may become"),
    whole("dlq_retention_days", "30", 1, 3650, "days", "how long dead letters are kept"),
    whole("dlq_max_bytes", "0", 0, BYTES_MAX, "bytes", "size of the DLQ; the oldest go first; 0 is no limit"),
    choice("archive", "on", &["on", "metadata", "off"], "what is kept of finished messages"),
    whole("archive_retention_months", "6", 1, 120, "months", "how long the archive is kept"),
    whole("cleanup_interval", "3600", 10, 86_400, "s", "how often retention is applied"),
    choice("attempt_log", "failures", &["all", "failures", "off"], "which attempts of finished messages stay recorded"),
    choice("capture_response", "off", &["all", "failures", "off"], "which answers of receivers are kept with the attempt"),
    whole("response_body_max_bytes", "65536", 0, 16 << 20, "bytes", "how much of an answer is read and kept"),
    whole("idempotency_retention", "0", 0, 31_536_000, "s", "how long a key stays reserved after completion"),
    whole("event_log_retention_days", "30", 1, 365, "days", "how long the event log is kept"),
];

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self {
            default_max_attempts: 0,
            retry_base_delay: Duration::ZERO,
            retry_max_delay: Duration::ZERO,
            retry_increment: Duration::ZERO,
            circuit_breaker_threshold: 0,
            circuit_breaker_cooldown: Duration::ZERO,
            node_lease: Duration::ZERO,
            stale_recovery_timeout: Duration::ZERO,
            max_queue_size: 0,
            max_payload_bytes: 0,
            max_headers_bytes: 0,
            max_key_bytes: 0,
            max_batch_messages: 0,
            max_fanout: 0,
            dlq_retention_days: 0,
            dlq_max_bytes: 0,
            archive: ArchiveMode::On,
            archive_retention_months: 0,
            cleanup_interval: Duration::ZERO,
            attempt_log: AttemptLog::Failures,
            capture_response: CaptureResponse::Off,
            response_body_max_bytes: 0,
            idempotency_retention: Duration::ZERO,
            event_log_retention_days: 0,
        };
        for setting in TABLE {
            settings.apply(setting.name, setting.default).expect("every default is within its own range");
        }
        settings
    }
}

impl Settings {
    /// Checks and sets one setting by its name.
    pub fn apply(&mut self, name: &str, value: &str) -> Result<(), Invalid> {
        let setting = TABLE.iter().find(|setting| setting.name == name).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
            Invalid::unknown_key("", name, &known)
        })?;
        let number = setting.check(value)?;
        let seconds = Duration::from_secs(number);
        match name {
            "default_max_attempts" => self.default_max_attempts = number as u32,
            "retry_base_delay" => self.retry_base_delay = seconds,
            "retry_max_delay" => self.retry_max_delay = seconds,
            "retry_increment" => self.retry_increment = seconds,
            "circuit_breaker_threshold" => self.circuit_breaker_threshold = number as u32,
            "circuit_breaker_cooldown" => self.circuit_breaker_cooldown = seconds,
            "node_lease" => self.node_lease = seconds,
            "stale_recovery_timeout" => self.stale_recovery_timeout = seconds,
            "max_queue_size" => self.max_queue_size = number,
            "max_payload_bytes" => self.max_payload_bytes = number,
            "max_headers_bytes" => self.max_headers_bytes = number,
            "max_key_bytes" => self.max_key_bytes = number,
            "max_batch_messages" => self.max_batch_messages = number,
            "max_fanout" => self.max_fanout = number,
            "dlq_retention_days" => self.dlq_retention_days = number as u32,
            "dlq_max_bytes" => self.dlq_max_bytes = number,
            "archive" => {
                self.archive = match value {
                    "on" => ArchiveMode::On,
                    "metadata" => ArchiveMode::Metadata,
                    _ => ArchiveMode::Off,
                };
            }
            "archive_retention_months" => self.archive_retention_months = number as u32,
            "cleanup_interval" => self.cleanup_interval = seconds,
            "attempt_log" => {
                self.attempt_log = match value {
                    "all" => AttemptLog::All,
                    "failures" => AttemptLog::Failures,
                    _ => AttemptLog::Off,
                };
            }
            "capture_response" => {
                self.capture_response = match value {
                    "all" => CaptureResponse::All,
                    "failures" => CaptureResponse::Failures,
                    _ => CaptureResponse::Off,
                };
            }
            "response_body_max_bytes" => self.response_body_max_bytes = number,
            "idempotency_retention" => self.idempotency_retention = seconds,
            "event_log_retention_days" => self.event_log_retention_days = number as u32,
            other => unreachable!("setting {other} is in the table and has no field"),
        }
        Ok(())
    }
}

impl Settings {
    /// What one setting says, as [`Settings::apply`] takes it; None for a name that is none.
    pub fn value(&self, name: &str) -> Option<String> {
        let seconds = |duration: Duration| duration.as_secs().to_string();
        Some(match name {
            "default_max_attempts" => self.default_max_attempts.to_string(),
            "retry_base_delay" => seconds(self.retry_base_delay),
            "retry_max_delay" => seconds(self.retry_max_delay),
            "retry_increment" => seconds(self.retry_increment),
            "circuit_breaker_threshold" => self.circuit_breaker_threshold.to_string(),
            "circuit_breaker_cooldown" => seconds(self.circuit_breaker_cooldown),
            "node_lease" => seconds(self.node_lease),
            "stale_recovery_timeout" => seconds(self.stale_recovery_timeout),
            "max_queue_size" => self.max_queue_size.to_string(),
            "max_payload_bytes" => self.max_payload_bytes.to_string(),
            "max_headers_bytes" => self.max_headers_bytes.to_string(),
            "max_key_bytes" => self.max_key_bytes.to_string(),
            "max_batch_messages" => self.max_batch_messages.to_string(),
            "max_fanout" => self.max_fanout.to_string(),
            "dlq_retention_days" => self.dlq_retention_days.to_string(),
            "dlq_max_bytes" => self.dlq_max_bytes.to_string(),
            "archive" => match self.archive {
                ArchiveMode::On => "on",
                ArchiveMode::Metadata => "metadata",
                ArchiveMode::Off => "off",
            }
            .to_owned(),
            "archive_retention_months" => self.archive_retention_months.to_string(),
            "cleanup_interval" => seconds(self.cleanup_interval),
            "attempt_log" => match self.attempt_log {
                AttemptLog::All => "all",
                AttemptLog::Failures => "failures",
                AttemptLog::Off => "off",
            }
            .to_owned(),
            "capture_response" => match self.capture_response {
                CaptureResponse::All => "all",
                CaptureResponse::Failures => "failures",
                CaptureResponse::Off => "off",
            }
            .to_owned(),
            "response_body_max_bytes" => self.response_body_max_bytes.to_string(),
            "idempotency_retention" => seconds(self.idempotency_retention),
            "event_log_retention_days" => self.event_log_retention_days.to_string(),
            _ => return None,
        })
    }
}

impl Setting {
    /// The number it stands for; 0 for a choice.
    pub fn check(&self, value: &str) -> Result<u64, Invalid> {
        match &self.kind {
            Kind::Whole { min, max } => {
                value.parse().ok().filter(|number| (min..=max).contains(&number)).ok_or_else(|| {
                    Invalid::new(self.name, format!("must be a whole number from {min} to {max}"))
                })
            }
            Kind::Choice(choices) => {
                if choices.contains(&value) {
                    Ok(0)
                } else {
                    Err(Invalid::new(self.name, format!("must be one of {}", choices.join(", "))))
                }
            }
        }
    }
}
