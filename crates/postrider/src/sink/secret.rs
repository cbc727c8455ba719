//! Reads the secrets that configs refer to. Errors name the reference, never a value.

use std::io;
use std::path::PathBuf;

use super::{Environment, Undelivered};
use crate::net;
use crate::protocol::secret::Reference;
use crate::verdict::Failure;

/// Keys and tokens are short; a larger file is a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

pub(crate) struct Secrets {
    directory: Option<PathBuf>,
    variable: fn(&str) -> Option<String>,
}

impl Secrets {
    pub(crate) fn new(environment: &Environment) -> Self {
        Self { directory: environment.secrets_dir.clone(), variable: |name| std::env::var(name).ok() }
    }

    /// The secret itself. A missing one is retryable: it is the node that lacks it, not the message.
    pub(crate) fn reveal(&self, text: &str) -> Result<String, Undelivered> {
        match Reference::parse(text).map_err(Failure::permanent)? {
            None => Ok(text.to_owned()),
            Some(Reference::Variable(name)) => Ok((self.variable)(name).ok_or_else(|| {
                Failure::retryable(format!("the secret ${{{name}}} is not set on this node"))
            })?),
            Some(Reference::File(name)) => self.file(name).map_err(|error| {
                let why = net::short(&error);
                let failure = Failure::retryable(format!("the secret file:{name} cannot be read: {why}"));
                net::judge(&error, failure)
            }),
        }
    }

    /// As [`Secrets::reveal`], for a secret that has to follow a rule.
    pub(crate) fn reveal_as<T, E: std::fmt::Display>(
        &self,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Undelivered> {
        Ok(parse(&self.reveal(text)?).map_err(|why| match Reference::parse(text) {
            Ok(Some(_)) => Failure::retryable(format!("the secret {text} {why}")),
            _ => Failure::permanent(format!("a secret {why}")),
        })?)
    }

    fn file(&self, name: &str) -> io::Result<String> {
        let refused = |why: String| Err(io::Error::other(why));
        let Some(directory) = self.directory.as_deref() else {
            return refused("this node has no --secrets-dir".to_owned());
        };
        let directory = directory.canonicalize()?;
        // Links are followed before the check, so that none leads out of the directory.
        let path = directory.join(name).canonicalize()?;
        if !path.starts_with(&directory) {
            return refused("it is not below --secrets-dir".to_owned());
        }
        if std::fs::metadata(&path)?.len() > FILE_BYTES_MAX {
            return refused(format!("it has more than {FILE_BYTES_MAX} bytes"));
        }
        let mut text = std::fs::read_to_string(&path)?;
        // Editors and `echo` end a file with a newline that is not part of the secret.
        text.truncate(text.trim_end_matches(['\r', '\n']).len());
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::verdict::Class;

    fn secrets(directory: Option<&Path>) -> Secrets {
        Secrets {
            directory: directory.map(Path::to_owned),
            variable: |name| (name == "POSTRIDER_SECRET_KNOWN").then(|| "hidden".to_owned()),
        }
    }

    fn failure<T: std::fmt::Debug>(revealed: Result<T, Undelivered>) -> Failure {
        match revealed.unwrap_err() {
            Undelivered::Failed(failure) => failure,
            Undelivered::Short(shortage) => panic!("{shortage}"),
        }
    }

    #[test]
    fn a_text_that_is_no_reference_is_the_secret_itself() {
        assert_eq!(secrets(None).reveal("pa$$word").unwrap(), "pa$$word");
    }

    #[test]
    fn a_variable_is_read_from_the_environment() {
        assert_eq!(secrets(None).reveal("${POSTRIDER_SECRET_KNOWN}").unwrap(), "hidden");
    }

    #[test]
    fn a_missing_variable_is_retryable_and_named() {
        let failure = failure(secrets(None).reveal("${POSTRIDER_SECRET_LOST}"));
        assert_eq!(failure.class, Class::Retryable);
        assert!(failure.error.contains("${POSTRIDER_SECRET_LOST}"), "{}", failure.error);
    }

    #[test]
    fn a_variable_without_the_prefix_is_never_read() {
        assert_eq!(failure(secrets(None).reveal("${HOME}")).class, Class::Permanent);
    }

    #[test]
    fn a_file_is_read_below_the_directory_without_its_last_newline() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        std::fs::write(directory.path().join("sub/key"), "hidden\n").unwrap();
        assert_eq!(secrets(Some(directory.path())).reveal("file:sub/key").unwrap(), "hidden");
    }

    #[test]
    fn a_missing_file_or_directory_is_retryable_and_named() {
        let directory = tempfile::tempdir().unwrap();
        for secrets in [secrets(Some(directory.path())), secrets(None)] {
            let failure = failure(secrets.reveal("file:lost"));
            assert_eq!(failure.class, Class::Retryable);
            assert!(failure.error.contains("file:lost"), "{}", failure.error);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_out_of_the_directory_is_refused() {
        let outside = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("key"), "stolen").unwrap();
        std::os::unix::fs::symlink(outside.path().join("key"), directory.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), directory.path().join("dir")).unwrap();
        for name in ["file:link", "file:dir/key"] {
            let failure = failure(secrets(Some(directory.path())).reveal(name));
            assert!(failure.error.contains("not below"), "{}", failure.error);
        }
    }

    #[test]
    fn a_path_that_climbs_out_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["file:../key", "file:/etc/passwd", "file:a/../../key", "file:"] {
            assert_eq!(failure(secrets(Some(directory.path())).reveal(name)).class, Class::Permanent);
        }
    }

    #[test]
    fn a_secret_that_breaks_its_rule_is_named_but_not_shown() {
        let revealed =
            secrets(None).reveal_as("${POSTRIDER_SECRET_KNOWN}", |_| Err::<(), _>("must be longer"));
        let failure = failure(revealed);
        assert_eq!(failure.error, "the secret ${POSTRIDER_SECRET_KNOWN} must be longer");
    }
}
