//! SQLite for Node, from npm.

use test_servers::node_sqlite::{RELEASE, folder};

use crate::command::run;
use crate::once;

/// Why it could not be had.
pub(crate) fn missing() -> Option<String> {
    once::missing(RELEASE, &folder(), |place| {
        let mut npm = vec!["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"];
        npm.extend(["--prefix", place, RELEASE]);
        run("npm", &npm, &[])
    })
}
