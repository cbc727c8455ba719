//! Schemathesis with all that it needs, from PyPI.

use test_servers::schemathesis::{RELEASE, folder};

use crate::install;

/// Why it could not be installed.
pub(crate) fn missing() -> Option<String> {
    install::from_pypi(RELEASE, &folder())
}
