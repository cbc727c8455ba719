//! SQLite for Node, from npm.

use test_servers::node_sqlite::{RELEASE, folder};

use crate::command::run;
use crate::install;

/// Why it could not be installed.
pub(crate) fn missing() -> Option<String> {
    install::once(RELEASE, &folder(), |workshop| {
        let mut npm = vec!["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"];
        let prefix = workshop.to_string_lossy();
        npm.extend(["--prefix", &prefix, RELEASE]);
        run("npm", &npm, &[])?;
        Ok(workshop.to_owned())
    })
}
