//! `postrider export`: a whole SQLite store as one stream.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use postrider::SqliteStore;
use postrider::store::moving::{MoveError, Moved};
use serde_json::json;
use tempfile::Builder;

use super::moving::{self, STANDARD};
use crate::failure::CommandError;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) const HELP: &str = "\
The store must be a SQLite file, and its node must have stopped. The export closes it: from then
on no node starts on it and nothing can be sent to it or changed in it, so that no message is
delivered twice or left behind. If the export fails, the store is as it was.

The file holds everything, payloads and the secrets of endpoints too, so only its owner may read it.
`postrider import` reads it into a PostgreSQL store that `postrider migrate` made.";

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// Where to write it: a new file, or - for stdout (also when it is left out)
    file: Option<PathBuf>,

    /// Do not close the store: for a trial, since both stores then hold the same messages
    #[arg(long)]
    leave_open: bool,

    /// Take an export back: let the store that it closed go on
    #[arg(long, conflicts_with_all = ["file", "leave_open"])]
    reopen: bool,
}

pub(super) async fn run(arguments: ExportArgs, url: &StoreUrl, output: Output) -> Result<(), CommandError> {
    let store = url.open_export().await?;
    if arguments.reopen {
        return reopen(&store, url, output).await;
    }
    let target = ExportTarget::of(arguments.file)?;
    let closed = match arguments.leave_open {
        true => false,
        false => store.close_for_export(&format!("an export to {}", target.name())).await?,
    };
    let written = tokio::select! {
        written = write(&store, &target, output) => written,
        _ = tokio::signal::ctrl_c() => Err(CommandError::failed("interrupted; the store is as it was")),
    };
    match written {
        Ok(moved) => tell(&moved, &target, url, !arguments.leave_open, output),
        Err(failure) => {
            if closed {
                store.reopen().await?;
            }
            Err(failure)
        }
    }
}

enum ExportTarget {
    Stdout,
    File(PathBuf),
}

impl ExportTarget {
    fn of(file: Option<PathBuf>) -> Result<Self, CommandError> {
        match file.filter(|file| file.as_os_str() != STANDARD) {
            Some(file) if file.exists() => {
                Err(CommandError::usage(format!("{} exists already", file.display()))
                    .hint("an export is never written over something else; choose another name"))
            }
            Some(file) => Ok(Self::File(file)),
            None if io::stdout().is_terminal() => {
                Err(CommandError::usage("an export is nothing to look at: give a FILE, or pipe it somewhere"))
            }
            None => Ok(Self::Stdout),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Stdout => "standard output".to_owned(),
            Self::File(file) => file.display().to_string(),
        }
    }
}

async fn write(store: &SqliteStore, target: &ExportTarget, output: Output) -> Result<Moved, CommandError> {
    let bar = moving::bar(None, output);
    match target {
        ExportTarget::Stdout => Ok(store.export(bar.wrap_write(io::stdout())).await?),
        ExportTarget::File(file) => {
            let unwritable =
                |error: io::Error| CommandError::failed(format!("cannot write {}: {error}", file.display()));
            // The file is complete or absent. Only its owner may read it.
            let new =
                Builder::new().prefix(".postrider-export-").tempfile_in(folder(file)).map_err(unwritable)?;
            let to = new.reopen().map_err(unwritable)?;
            let moved = store.export(bar.wrap_write(to)).await.map_err(|error| match error {
                MoveError::Io(error) => unwritable(error),
                other => other.into(),
            })?;
            new.as_file().sync_all().map_err(unwritable)?;
            new.persist_noclobber(file).map_err(|error| unwritable(error.error))?;
            Ok(moved)
        }
    }
}

fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn tell(
    moved: &Moved,
    target: &ExportTarget,
    url: &StoreUrl,
    closed: bool,
    output: Output,
) -> Result<(), CommandError> {
    let json = || {
        let (store, rows) = (&moved.store, &moved.rows);
        json!({ "store": store, "url": url.to_string(), "file": target.name(), "closed": closed, "rows": rows }).to_string()
    };
    let text = || {
        let next = match closed {
            true => {
                let import = match target {
                    ExportTarget::Stdout => String::new(),
                    ExportTarget::File(file) => format!(
                        "Next: postrider migrate --store postgres://…\n\
                         Then: postrider import --store postgres://… {}\n",
                        file.display()
                    ),
                };
                format!(
                    "{url} is closed now: nothing is delivered from it or sent to it any more.\n\
                     {import}Not wanted after all: postrider export --reopen --store {url}"
                )
            }
            false => {
                format!("{url} was left as it was; nodes on both stores would deliver everything twice")
            }
        };
        format!(
            "exported store {} to {}: {}\n{next}",
            moved.store,
            target.name(),
            moving::counts(&moved.rows)
        )
    };
    match target {
        // Where the stream went is no place for words.
        ExportTarget::Stdout if output.json => eprintln!("{}", json()),
        ExportTarget::Stdout => eprintln!("{}", text()),
        ExportTarget::File(_) => return output.document(json, text),
    }
    Ok(())
}

async fn reopen(store: &SqliteStore, url: &StoreUrl, output: Output) -> Result<(), CommandError> {
    let reopened = store.reopen().await?;
    output.document(
        || json!({ "url": url.to_string(), "reopened": reopened }).to_string(),
        || match reopened {
            true => format!("{url} is open again; make sure that no node runs on what was imported from it"),
            false => format!("{url} was not closed"),
        },
    )
}
