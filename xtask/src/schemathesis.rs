//! Schemathesis with all that it needs, from PyPI.

use test_servers::schemathesis::{RELEASE, folder};

use crate::command::run;
use crate::install;

/// Why it could not be installed.
pub(crate) fn missing() -> Option<String> {
    install::once(RELEASE, &folder(), |workshop| {
        let mut pip = vec!["-m", "pip", "install", "-q", "--retries", "1", "--root-user-action", "ignore"];
        let target = workshop.to_string_lossy();
        pip.extend(["--only-binary=:all:", "--target", &target, RELEASE]);
        run("python3", &pip, &[])?;
        Ok(workshop.to_owned())
    })
}
