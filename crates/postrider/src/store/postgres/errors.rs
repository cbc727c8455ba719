//! The server's errors as store errors. The functions of `sql/errors.sql` put field and name into fields of the error, so no
//! message is parsed.

use deadpool::managed::PoolError;
use serde::Deserialize;
use tokio_postgres::error::DbError;

use super::tls;
use crate::error::{FIELDS, Invalid, LIMITS, StoreError, THINGS, known_word};
use crate::message::MessageId;

pub(super) fn store_error(error: tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(said) => ServerError::from(said).refusal(),
        None => match tls::advice(&error) {
            Some(advice) => StoreError::Unusable(advice),
            None => StoreError::Unavailable(sentence(&error)),
        },
    }
}

pub(super) fn pool_error(error: PoolError<StoreError>) -> StoreError {
    match error {
        PoolError::Backend(error) => error,
        other => StoreError::Unavailable(other.to_string()),
    }
}

/// The driver's errors say little without their cause.
fn sentence(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// An error of the server, from either driver.
pub(super) struct ServerError<'a> {
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    pub(super) detail: Option<&'a str>,
    pub(super) column: Option<&'a str>,
    pub(super) constraint: Option<&'a str>,
}

impl<'a> From<&'a DbError> for ServerError<'a> {
    fn from(said: &'a DbError) -> Self {
        Self {
            code: said.code().code(),
            message: said.message(),
            detail: said.detail(),
            column: said.column(),
            constraint: said.constraint(),
        }
    }
}

impl ServerError<'_> {
    pub(super) fn refusal(&self) -> StoreError {
        let Self { column, constraint, .. } = *self;
        let name = || constraint.unwrap_or_default().to_owned();
        match self.code {
            "22023" if column.is_some() => self.invalid().into(),
            "42704" if column.is_some() => {
                StoreError::Unknown { what: known_word(&THINGS, column), name: name() }
            }
            "42710" if column.is_some() => {
                StoreError::Exists { what: known_word(&THINGS, column), name: name() }
            }
            "22021" | "22P05" => {
                let rule = format!("must be text that PostgreSQL can keep, without U+0000: {}", self.message);
                Invalid::new("text", rule).into()
            }
            "54000" if column.is_some() => self.too_large(),
            "55000" if column == Some("endpoint") => StoreError::Disabled { endpoint: name() },
            "55000" => StoreError::Conflict(self.message.to_owned()),
            "23505" if column == Some("idempotency_key") => {
                let holder = constraint.and_then(|id| id.parse().ok()).map(MessageId);
                StoreError::IdempotencyConflict { holder, at: self.figures().at }
            }
            "53400" if self.detail.is_some() => self.queue_full(),
            _ => self.unexpected(),
        }
    }

    /// An error that our functions do not raise.
    fn unexpected(&self) -> StoreError {
        let code = self.code;
        let message = format!("{} ({code})", self.message);
        match (&code[..2], code) {
            (_, "42P01" | "42883" | "3F000") => StoreError::Unusable(format!(
                "{message}; if this database has no postrider schema yet, run `postrider migrate`"
            )),
            (_, "3D000") => {
                StoreError::Unusable(format!("{message}; `createdb` or CREATE DATABASE makes it"))
            }
            (_, "42501") => StoreError::Unusable(format!(
                "{message}; nodes and commands connect as the role that migrated the store"
            )),
            // Authentication and authorization.
            ("28", _) => StoreError::Unusable(message),
            (_, "55P03") => {
                StoreError::Unavailable(format!("{message}; another transaction holds what this waits for"))
            }
            _ => StoreError::Unavailable(message),
        }
    }

    /// The message begins with the field.
    fn invalid(&self) -> Invalid {
        let field = self.column.unwrap_or_default();
        let rule = self.message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
        Invalid::new(field, rule.unwrap_or(self.message))
    }

    fn figures(&self) -> ErrorDetail {
        self.detail.and_then(|detail| serde_json::from_str(detail).ok()).unwrap_or_default()
    }

    fn too_large(&self) -> StoreError {
        let ErrorDetail { size, limit, .. } = self.figures();
        // `events[3].payload`: the error names the field, its message the index.
        let field = self.column.and_then(|field| field.rsplit('.').next());
        let (field, setting) = (known_word(&FIELDS, field), known_word(&LIMITS, self.constraint));
        StoreError::TooLarge { field, bytes: size, limit, setting }
    }

    fn queue_full(&self) -> StoreError {
        let ErrorDetail { queued, limit, .. } = self.figures();
        let endpoint = self.constraint.filter(|name| !name.is_empty()).map(str::to_owned);
        StoreError::QueueFull { queued, limit, endpoint }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorDetail {
    size: u64,
    queued: u64,
    limit: u64,
    at: usize,
}
