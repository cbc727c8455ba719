//! `--url`, `--token-env` and `--store`: where a command is to work, from flags and environment.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::failure::CommandError;
use crate::place::StoreOrNode;
use crate::remote::{Remote, RemoteArgs};
use crate::store_url::StoreUrl;

const URL: &str = "node_url";
const TOKEN_ENV: &str = "token_env";
const STORE: &str = "store";

/// What cannot be done through a node, and why.
const LOCAL: [(&str, &str); 9] = [
    ("serve", "it is the node; --listen says where it answers"),
    ("migrate", "it works on a store: run it where the store can be reached, with --store"),
    ("demo", "it makes its own store and node"),
    ("bench", "it makes its own stores and nodes"),
    ("bench-receiver", "it makes its own stores and nodes"),
    ("export", "it works on a store whose node has stopped, with --store"),
    ("import", "it works on a store that no node runs on yet, with --store"),
    ("signature", "it needs neither a store nor a node"),
    ("completions", "it needs neither a store nor a node"),
];

/// Flags go with every command below. Clap has global ones, but none with exceptions: the `--url` of `endpoint create` and
/// `alter` is the endpoint's own.
pub(super) fn with_node_flags(command: Command) -> Command {
    let flags: Vec<Arg> = command
        .get_arguments()
        .filter(|flag| [URL, TOKEN_ENV].contains(&flag.get_id().as_str()))
        .cloned()
        .collect();
    command.mut_subcommands(|sub| {
        let is_local = reason(sub.get_name()).is_some();
        below(sub, &flags.iter().map(|flag| flag.clone().hide(is_local)).collect::<Vec<_>>())
    })
}

fn below(command: Command, flags: &[Arg]) -> Command {
    let taken: Vec<String> =
        command.get_arguments().filter_map(|own| own.get_long().map(str::to_owned)).collect();
    let free = |flag: &&Arg| flag.get_long().is_none_or(|long| !taken.iter().any(|taken| taken == long));
    let free: Vec<Arg> = flags.iter().filter(free).cloned().collect();
    command.args(free).mut_subcommands(|sub| below(sub, flags))
}

fn reason(command: &str) -> Option<&'static str> {
    LOCAL.iter().find(|(name, _)| *name == command).map(|(_, reason)| *reason)
}

/// What was said of the node, and how.
pub(super) struct Whereto {
    remote: RemoteArgs,
    url_from: Option<ValueSource>,
    store_from: Option<ValueSource>,
}

impl Whereto {
    pub(super) fn of(matches: &ArgMatches) -> Self {
        let (url, url_from) = innermost(matches, URL).unzip();
        let token_env = innermost(matches, TOKEN_ENV).map(|(name, _)| name).unwrap_or_default();
        let store_from = innermost(matches, STORE).map(|(_, from)| from);
        Self { remote: RemoteArgs { url, token_env }, url_from, store_from }
    }

    /// For a command that does not work through a node. What the environment says is meant for others.
    pub(super) fn refuse_node(&self, matches: &ArgMatches) -> Result<(), CommandError> {
        let Some((name, reason)) = matches.subcommand_name().and_then(|name| Some((name, reason(name)?)))
        else {
            return Ok(());
        };
        match self.url_from {
            Some(ValueSource::CommandLine) => {
                Err(CommandError::usage(format!("`postrider {name}` cannot be told a --url: {reason}")))
            }
            _ => Ok(()),
        }
    }

    /// A flag goes before an environment variable, and that before the file.
    pub(super) fn place(
        &self,
        store: impl FnOnce() -> Result<StoreUrl, CommandError>,
    ) -> Result<StoreOrNode, CommandError> {
        match (self.url_from, self.store_from) {
            (None, _) => store().map(StoreOrNode::Store),
            (Some(url), Some(given)) if url == given => Err(both(url)),
            (Some(ValueSource::EnvVariable), Some(ValueSource::CommandLine)) => {
                store().map(StoreOrNode::Store)
            }
            (Some(_), _) => StoreOrNode::node(self.remote.clone()),
        }
    }

    /// For a command that needs a node, at the usual place unless said.
    pub(super) fn node(&self) -> Result<Remote, CommandError> {
        match self.store_from {
            Some(ValueSource::CommandLine) => Err(CommandError::usage(
                "this command looks at a running node, so it cannot be told a --store",
            )
            .hint("--url says where the node answers")),
            _ => Remote::new(self.remote.clone()),
        }
    }
}

fn both(given: ValueSource) -> CommandError {
    match given {
        ValueSource::EnvVariable => CommandError::usage(
            "POSTRIDER_URL names a node and POSTRIDER_STORE a store: which of them is meant?",
        )
        .hint("--url or --store says which"),
        _ => CommandError::usage("--url names a node and --store a store: give one of them"),
    }
}

/// Said on the command line, nearest to the command; or in the environment, or by default.
fn innermost(matches: &ArgMatches, id: &str) -> Option<(String, ValueSource)> {
    let here = match matches.try_get_one::<String>(id) {
        Ok(Some(text)) => matches.value_source(id).map(|from| (text.clone(), from)),
        Ok(None) | Err(_) => None,
    };
    let below = matches.subcommand().and_then(|(_, below)| innermost(below, id));
    [here, below].into_iter().flatten().max_by_key(|(_, from)| *from == ValueSource::CommandLine)
}
