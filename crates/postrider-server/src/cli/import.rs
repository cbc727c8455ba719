//! `postrider import`: a whole store from what `postrider export` wrote.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use postrider::PostgresStore;
use serde_json::json;

use super::moving::{self, STANDARD};
use crate::failure::CommandError;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) const HELP: &str = "\
The store must be a PostgreSQL database that `postrider migrate` has just made ready: it holds
nothing yet, and no node runs on it. Everything comes over with the same ids and the same store id,
in one transaction: a damaged or cut file, or a connection that breaks, leaves the database empty.
What was being delivered when the old node was killed counts as an attempt that was lost.";

#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// What `postrider export` wrote, or - for stdin (also when it is left out)
    file: Option<PathBuf>,
}

pub(super) async fn run(arguments: ImportArgs, url: &StoreUrl, output: Output) -> Result<(), CommandError> {
    let target = url.import_target()?;
    let (from, bytes) = open(arguments.file)?;
    let moved = PostgresStore::import(target.as_str(), moving::bar(bytes, output).wrap_read(from)).await?;
    output.document(
        || json!({ "store": moved.store, "url": url.to_string(), "rows": moved.rows }).to_string(),
        || {
            let counts = moving::counts(&moved.rows);
            format!(
                "imported store {} into {url}: {counts}\nNext: postrider serve --store {url}",
                moved.store
            )
        },
    )
}

/// With its length, where it has one.
fn open(file: Option<PathBuf>) -> Result<(Box<dyn Read + Send>, Option<u64>), CommandError> {
    let Some(path) = file.filter(|file| file.as_os_str() != STANDARD) else {
        if io::stdin().is_terminal() {
            return Err(CommandError::usage("there is nothing to import: give the FILE, or pipe it in"));
        }
        return Ok((Box::new(io::stdin()), None));
    };
    let unreadable =
        |error: io::Error| CommandError::failed(format!("cannot read {}: {error}", path.display()));
    let file = File::open(&path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let bytes = about.is_file().then_some(about.len());
    Ok((Box::new(file), bytes))
}
