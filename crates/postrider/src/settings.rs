//! Settings of the store: one table of names, defaults and ranges, and the checked values.

use std::time::Duration;

use serde::Serialize;

use crate::error::Invalid;

pub const MAX_ATTEMPTS_MAX: u32 = 1001;
pub const DELAY_MAX_SECONDS: u32 = 86_400;

/// One row of the table of settings.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: SettingKind,
    pub default: &'static str,
    pub unit: &'static str,
    pub meaning: &'static str,
}

#[derive(Debug)]
pub enum SettingKind {
    Whole { min: u64, max: u64 },
    Choice(&'static [&'static str]),
}

/// The Rust type of a setting. The text was checked against the setting's kind.
trait SettingValue {
    fn from_text(text: &str) -> Self;
    fn to_text(&self) -> String;
}

/// Makes [`Settings`] and its [`TABLE`] of one list.
macro_rules! settings {
    ($($name:ident: $type:ty = $default:literal, $kind:expr, $unit:literal, $meaning:literal;)*) => {
        /// The checked settings of a store.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $(#[doc = $meaning] pub $name: $type,)*
        }

        pub const TABLE: &[Setting] = &[$(
            Setting { name: stringify!($name), kind: $kind, default: $default, unit: $unit, meaning: $meaning },
        )*];

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: SettingValue::from_text($default),)* }
            }
        }

        impl Settings {
            /// Checks and sets one setting by its name.
            pub fn apply(&mut self, name: &str, value: &str) -> Result<(), Invalid> {
                Setting::named(name)?.check(value)?;
                match name {
                    $(stringify!($name) => self.$name = SettingValue::from_text(value),)*
                    _ => unreachable!("the table has every setting"),
                }
                Ok(())
            }

            /// A setting as the text that [`Settings::apply`] takes; None for an unknown name.
            pub fn value(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.to_text()),)*
                    _ => None,
                }
            }
        }
    };
}

const fn whole(min: u64, max: u64) -> SettingKind {
    SettingKind::Whole { min, max }
}

use SettingKind::Choice;

const BYTES_MAX: u64 = 1 << 40;

#[rustfmt::skip]
settings! {
    default_max_attempts: u32 = "11", whole(0, MAX_ATTEMPTS_MAX as u64), "", "attempts before a message is dead; 0 is no limit";
    retry_base_delay: Duration = "10", whole(1, 3600), "s", "delay before the first retry";
    retry_max_delay: Duration = "300", whole(1, DELAY_MAX_SECONDS as u64), "s", "no retry waits longer";
    retry_increment: Duration = "30", whole(1, 3600), "s", "what linear backoff adds each time";
    circuit_breaker_threshold: u32 = "10", whole(1, 1000), "", "consecutive failures that open a circuit";
    circuit_breaker_cooldown: Duration = "30", whole(5, 3600), "s", "how long an open circuit rests before a probe";
    node_lease: Duration = "15", whole(5, 300), "s", "a node silent for longer loses its claims";
    stale_recovery_timeout: Duration = "300", whole(60, 3600), "s", "bounds one attempt on a node that lives but does not settle";
    max_queue_size: u64 = "1000000", whole(0, 1_000_000_000_000), "", "pending and processing messages; 0 is no limit";
    max_payload_bytes: u64 = "1048576", whole(1024, 100 << 20), "bytes", "largest payload";
    max_headers_bytes: u64 = "16384", whole(0, 1 << 20), "bytes", "largest headers of a message, names and values added up";
    max_key_bytes: u64 = "256", whole(1, 2048), "bytes", "longest ordering or idempotency key";
    max_batch_messages: u64 = "10000", whole(1, 1_000_000), "", "messages in one batch";
    max_fanout: u64 = "10000", whole(1, 1_000_000), "", "messages that one event may become";
    dlq_retention_days: u32 = "30", whole(1, 3650), "days", "how long dead letters are kept";
    dlq_max_bytes: u64 = "0", whole(0, BYTES_MAX), "bytes", "size of the DLQ; the oldest go first; 0 is no limit";
    archive: ArchiveMode = "on", Choice(ArchiveMode::CHOICES), "", "what is kept of finished messages";
    archive_retention_months: u32 = "6", whole(1, 120), "months", "how long the archive is kept";
    cleanup_interval: Duration = "3600", whole(10, 86_400), "s", "how often retention is applied";
    attempt_log: AttemptLog = "failures", Choice(AttemptLog::CHOICES), "", "which attempts of finished messages stay recorded";
    capture_response: CaptureResponse = "off", Choice(CaptureResponse::CHOICES), "", "which answers of receivers are kept with the attempt";
    response_body_max_bytes: u64 = "65536", whole(0, 16 << 20), "bytes", "how much of an answer is read and kept";
    idempotency_retention: Duration = "0", whole(0, 31_536_000), "s", "how long a key stays reserved after completion";
    event_log_retention_days: u32 = "30", whole(1, 365), "days", "how long the event log is kept";
}

/// An enum of the choices of one setting.
macro_rules! choices {
    ($type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            const CHOICES: &[&str] = &[$($name,)*];
        }

        impl SettingValue for $type {
            fn from_text(text: &str) -> Self {
                match text {
                    $($name => Self::$variant,)*
                    _ => unreachable!("a checked setting is one of its choices"),
                }
            }

            fn to_text(&self) -> String {
                match self {
                    $(Self::$variant => $name.to_owned(),)*
                }
            }
        }
    };
}

choices!(ArchiveMode {
    On = "on",
    /// Everything but payload and headers.
    Metadata = "metadata",
    Off = "off",
});
choices!(AttemptLog { All = "all", Failures = "failures", Off = "off", });
choices!(CaptureResponse { All = "all", Failures = "failures", Off = "off", });

impl SettingValue for u64 {
    fn from_text(text: &str) -> Self {
        text.parse().expect("a checked setting is a number")
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u32 {
    fn from_text(text: &str) -> Self {
        text.parse().expect("a checked setting is a number")
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for Duration {
    fn from_text(text: &str) -> Self {
        Self::from_secs(u64::from_text(text))
    }

    fn to_text(&self) -> String {
        self.as_secs().to_string()
    }
}

impl Settings {
    /// An attempt has to end before the janitor takes its claim for stuck. `field` names the timeout in the error.
    pub(crate) fn check_timeout(&self, field: &str, timeout: Duration) -> Result<(), Invalid> {
        let limit = self.stale_recovery_timeout;
        if timeout < limit {
            return Ok(());
        }
        let rule = format!("must be below stale_recovery_timeout, which is {} s", limit.as_secs());
        Err(Invalid::new(field, rule))
    }
}

impl Setting {
    fn named(name: &str) -> Result<&'static Self, Invalid> {
        TABLE.iter().find(|setting| setting.name == name).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
            Invalid::unknown_key("", name, &known)
        })
    }

    pub fn check(&self, value: &str) -> Result<(), Invalid> {
        let (holds, rule) = match &self.kind {
            SettingKind::Whole { min, max } => (
                value.parse().is_ok_and(|number: u64| (*min..=*max).contains(&number)),
                format!("must be a whole number from {min} to {max}"),
            ),
            SettingKind::Choice(choices) => {
                (choices.contains(&value), format!("must be one of {}", choices.join(", ")))
            }
        };
        if holds { Ok(()) } else { Err(Invalid::new(self.name, rule)) }
    }
}
