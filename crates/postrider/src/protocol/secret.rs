//! References to secrets: `${NAME}` and `file:NAME`. Only a sink reads the secret itself.

use std::path::{Component, Path};

use serde_json::Value;

/// Without it a config could read any variable of the process.
pub const VARIABLE_PREFIX: &str = "POSTRIDER_SECRET_";

pub(super) const REDACTED: &str = "***";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// `${NAME}`: a variable of the node's environment.
    Variable(&'a str),
    /// `file:NAME`: a file below the node's directory of secrets.
    File(&'a str),
}

impl<'a> Reference<'a> {
    pub(crate) fn is_one(text: &'a str) -> bool {
        matches!(Self::parse(text), Ok(Some(_)))
    }

    /// None when the text is the secret itself.
    pub fn parse(text: &'a str) -> Result<Option<Self>, String> {
        if let Some(rest) = text.strip_prefix("${") {
            let name =
                rest.strip_suffix('}').ok_or("begins like a reference ${NAME} but does not end with }")?;
            return variable(name).map(Some);
        }
        match text.strip_prefix("file:") {
            Some(name) => file(name).map(Some),
            None => Ok(None),
        }
    }
}

fn variable(name: &str) -> Result<Reference<'_>, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.strip_prefix(VARIABLE_PREFIX) {
        Some(rest) if !rest.is_empty() && rest.chars().all(allowed) => Ok(Reference::Variable(name)),
        _ => Err(format!(
            "refers to a variable that is not allowed; names begin with {VARIABLE_PREFIX} and have letters, digits and '_'"
        )),
    }
}

fn file(name: &str) -> Result<Reference<'_>, String> {
    let below = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.contains('\0') || !below {
        return Err("refers to a file that is not below the directory of secrets".to_owned());
    }
    Ok(Reference::File(name))
}

/// A reference may be shown, it is not the secret.
pub(super) fn shown(value: &Value) -> Value {
    match value.as_str().map(Reference::parse) {
        Some(Ok(Some(_))) => value.clone(),
        _ => Value::from(REDACTED),
    }
}
