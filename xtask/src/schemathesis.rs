//! Schemathesis with all that it needs, from PyPI.

use test_servers::schemathesis::{RELEASE, folder};

use crate::command::run;
use crate::once;

/// Why it could not be had.
pub(crate) fn missing() -> Option<String> {
    once::missing(RELEASE, &folder(), |place| {
        let mut pip = vec!["-m", "pip", "install", "-q", "--retries", "1", "--root-user-action", "ignore"];
        pip.extend(["--only-binary=:all:", "--target", place, RELEASE]);
        run("python3", &pip, &[])
    })
}
