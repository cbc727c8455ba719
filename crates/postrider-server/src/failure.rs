//! Why a command did not do what was asked, and the exit code that says so.

use std::borrow::Cow;
use std::process::ExitCode;

use postrider::store::moving::MoveError;
use postrider::{Invalid, StoreError};
use serde::Serialize;

/// Documented in `docs/cli.md`; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was tried and did not work.
    Failed = 1,
    /// A usage error: flags, environment, config file.
    Usage = 2,
    /// The store cannot be reached or used.
    Store = 3,
    /// The store said no: unknown, conflict, bad value, full.
    Refused = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct CommandError {
    #[serde(skip)]
    pub(crate) exit: Exit,
    pub(crate) error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sqlstate: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl CommandError {
    fn new(exit: Exit, error: impl Into<String>) -> Self {
        Self { exit, error: error.into(), field: None, sqlstate: None, hint: None }
    }

    pub(crate) fn failed(error: impl Into<String>) -> Self {
        Self::new(Exit::Failed, error)
    }

    pub(crate) fn usage(error: impl Into<String>) -> Self {
        Self::new(Exit::Usage, error)
    }

    pub(crate) fn store(error: impl Into<String>) -> Self {
        Self::new(Exit::Store, error)
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The store may be available in a moment.
    pub(crate) fn is_temporary(&self) -> bool {
        self.sqlstate.as_deref() == Some(StoreError::Unavailable(String::new()).sqlstate())
    }

    /// On stderr, for a person or as one line of JSON.
    pub(crate) fn print(&self, json: bool) {
        if json {
            let code = self.exit as u8;
            let mut object = serde_json::to_value(self).expect("strings become JSON");
            object["exit_code"] = code.into();
            eprintln!("{object}");
            return;
        }
        eprintln!("{} {}", console::style("error:").red().bold().for_stderr(), self.error);
        if let Some(hint) = &self.hint {
            eprintln!("{} {hint}", console::style("hint:").cyan().bold().for_stderr());
        }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        let (exit, field, hint) = match &error {
            StoreError::Invalid(invalid) => (Exit::Refused, Some(invalid.field.clone()), None),
            StoreError::Unknown { what: "endpoint", .. } => (
                Exit::Refused,
                None,
                Some(
                    "`postrider endpoint list` shows which there are, `postrider endpoint create` makes one",
                ),
            ),
            StoreError::Unknown { what: "token", .. } => {
                (Exit::Refused, None, Some("`postrider token list` shows which there are"))
            }
            StoreError::Unknown { what: "event type", .. } => {
                (Exit::Refused, None, Some("`postrider event list` shows which there are"))
            }
            StoreError::Unknown { what: "subscription", .. } => {
                (Exit::Refused, None, Some("`postrider event subscriptions` shows which there are"))
            }
            StoreError::Unknown { what: "dead letter", .. } => {
                (Exit::Refused, None, Some("`postrider dlq list` shows which there are"))
            }
            StoreError::Unknown { what: "replay", .. } => {
                (Exit::Refused, None, Some("`postrider replay list` shows which there are"))
            }
            StoreError::Unknown { what: "message", .. } => {
                (Exit::Refused, None, Some("it was never sent, or is not kept any more"))
            }
            StoreError::Unknown { .. } => (Exit::Refused, None, None),
            StoreError::Disabled { .. } => {
                (Exit::Refused, None, Some("`postrider endpoint enable NAME` enables it"))
            }
            StoreError::IdempotencyConflict { .. } => (
                Exit::Refused,
                Some("idempotency_key".to_owned()),
                Some("send the same payload again, or use another key"),
            ),
            StoreError::Exists { what: "event type", .. } => (
                Exit::Refused,
                None,
                Some("`postrider event drop NAME` removes the one there is; its subscriptions stay"),
            ),
            StoreError::Exists { .. } => {
                (Exit::Refused, None, Some("`postrider endpoint alter NAME` changes the one there is"))
            }
            StoreError::Conflict(_) | StoreError::QueueFull { .. } => (Exit::Refused, None, None),
            StoreError::TooLarge { field, setting: "max_payload_bytes", .. } => (
                Exit::Refused,
                Some((*field).to_owned()),
                Some("both are bytes; `postrider config set max_payload_bytes=N` allows more"),
            ),
            StoreError::TooLarge { field, .. } => (Exit::Refused, Some((*field).to_owned()), None),
            StoreError::Unavailable(_) => (Exit::Store, None, Some("nothing was changed; try again")),
            StoreError::Unusable(_) => (Exit::Store, None, None),
            StoreError::Denied(_) => (
                Exit::Refused,
                None,
                Some(
                    "`postrider token create` makes a token; put it into POSTRIDER_TOKEN, or name its variable with --token-env",
                ),
            ),
            StoreError::Unreachable(_) => (
                Exit::Store,
                None,
                Some("`postrider serve` runs one; --url or POSTRIDER_URL says where it answers"),
            ),
            StoreError::Uncertain(_) => {
                (Exit::Failed, None, Some("look before you ask again: it may have been done"))
            }
        };
        Self {
            exit,
            error: error.to_string(),
            field,
            sqlstate: Some(error.sqlstate().into()),
            hint: hint.map(str::to_owned),
        }
    }
}

impl From<Invalid> for CommandError {
    fn from(invalid: Invalid) -> Self {
        StoreError::Invalid(invalid).into()
    }
}

impl From<MoveError> for CommandError {
    fn from(error: MoveError) -> Self {
        match error {
            MoveError::Store(error) => error.into(),
            MoveError::Damaged(_) => Self::failed(error.to_string())
                .hint("nothing was imported; copy the file again, or export again"),
            MoveError::Foreign(_) | MoveError::Io(_) => Self::failed(error.to_string()),
        }
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<StoreError>() {
            Ok(error) => error.into(),
            Err(error) => Self::failed(format!("{error:#}")),
        }
    }
}
