//! Completion: a shell asks this program what may come next, and gets commands, flags, protocols and keys.

use std::ffi::OsString;

use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, CompletionCandidate, Shell};
use postrider::protocol::Protocol;

use super::set;
use crate::failure::CommandError;
use crate::output::Output;

pub(super) const HELP: &str = "\
Examples:
  source <(postrider completions bash)           in ~/.bashrc
  source <(postrider completions zsh)            in ~/.zshrc, behind compinit
  postrider completions fish | source            in ~/.config/fish/config.fish";

/// The scripts of `completions` set it when they ask.
const ASKED_BY: &str = "POSTRIDER_COMPLETE";

/// Prints the script by which a shell asks.
pub(super) fn run(shell: Shell, output: Output) -> Result<(), CommandError> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let asking = shells.completer(&shell.to_string()).expect("both lists of shells are clap's");
    asking
        .write_registration(ASKED_BY, "postrider", "postrider", "postrider", &mut script)
        .expect("a script can be written to memory");
    output.line(&String::from_utf8_lossy(&script))
}

/// Answers a shell that asks; false when none does.
pub(super) fn answer() -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(super::command)
        .var(ASKED_BY)
        .try_complete(std::env::args_os(), folder.as_deref())
}

pub(crate) fn protocols() -> Vec<CompletionCandidate> {
    Protocol::ALL.iter().map(|protocol| CompletionCandidate::new(protocol.as_str())).collect()
}

/// Keys of the protocol that was typed before `--set`, or of all.
pub(crate) fn keys() -> Vec<CompletionCandidate> {
    let named = |word: OsString| Protocol::from_name(word.to_str()?).ok();
    let typed = std::env::args_os().rev().find_map(named);
    set::beginnings(typed.as_ref().map_or(Protocol::ALL, std::slice::from_ref))
        .into_iter()
        .map(CompletionCandidate::new)
        .collect()
}
