//! `postrider completions`: what a shell needs to complete commands and flags.

use clap::Command;
use clap_complete::Shell;

use crate::failure::CommandError;
use crate::output::Output;

pub(super) const HELP: &str = "\
Examples:
  postrider completions bash > ~/.local/share/bash-completion/completions/postrider
  postrider completions zsh > ~/.zfunc/_postrider            with ~/.zfunc in fpath
  postrider completions fish > ~/.config/fish/completions/postrider.fish";

pub(super) fn run(shell: Shell, output: Output) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&super::command()), "postrider", &mut script);
    output.line(&String::from_utf8_lossy(&script))
}

/// Without what is not for people.
fn visible(command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible);
    // Names live as long as the program, which has nothing else to do.
    let name: &'static str = command.get_name().to_owned().leak();
    Command::new(name).about(about).args(arguments).subcommands(commands)
}
