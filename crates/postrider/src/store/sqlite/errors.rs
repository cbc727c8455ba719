//! SQLite's answers as store errors.

use rusqlite::ErrorCode;

use super::export;
use crate::error::StoreError;
use crate::store::moving::MoveError;

/// Errors are worth another try, unless the file cannot be used at all.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if let Some(refusal) = export::refusal(&error) {
            return refusal;
        }
        match error.sqlite_error_code() {
            Some(
                ErrorCode::NotADatabase
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly,
            ) => Self::Unusable(format!("the store cannot be used: {error}")),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Unavailable(format!("another program is writing to it ({error})"))
            }
            Some(ErrorCode::DiskFull) => Self::Unavailable(format!("its disk is full ({error})")),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for MoveError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::from(error).into()
    }
}
