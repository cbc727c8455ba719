//! `postrider config …`: the settings of the store.

use std::collections::BTreeSet;

use clap::Subcommand;
use postrider::Invalid;
use postrider::settings::{Setting, SettingKind, Settings, TABLE};
use serde_json::{Map, Value, json};

use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::view;

pub(super) const HELP: &str = "\
They live in the store and count for every node on it; nodes take them over within a second.
What a single node is told (where it listens, what it may reach) are the flags of `serve`.

Examples:
  postrider config list
  postrider config get retry_max_delay
  postrider config set retry_base_delay=5 retry_max_delay=600      both, or neither";

/// How alike two names must be, from 0 to 1, for one to be meant by the other.
const ALIKE_MIN: f64 = 0.8;

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print what one setting says
    Get {
        /// As `list` shows it
        name: String,
    },
    /// Change settings, all or none; those that are not named stay
    Set {
        #[arg(value_name = "NAME=VALUE", required = true)]
        changes: Vec<String>,
    },
    /// List all of them with their ranges and meanings, and the defaults of those that were changed
    List,
}

pub(super) async fn run(
    command: ConfigCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Get { name } => {
            let setting = known(&name)?;
            let settings = place.open_tool().await?.settings().await?;
            output.document(
                || shown(&[setting], &settings).to_string(),
                || settings.value(&name).unwrap_or_default(),
            )?;
        }
        ConfigCommand::Set { changes } => {
            let changes = parsed(&changes)?;
            let names: Vec<&Setting> = changes.iter().map(|(setting, _)| *setting).collect();
            let pairs = changes.into_iter().map(|(setting, value)| (setting.name.to_owned(), value));
            let store = place.open_tool().await?;
            store.configure(pairs.collect()).await?;
            let settings = store.settings().await?;
            output.document(|| shown(&names, &settings).to_string(), || changed(&names, &settings))?;
        }
        ConfigCommand::List => {
            let settings = place.open_tool().await?.settings().await?;
            output.document(|| list_json(&settings).to_string(), || list_text(&settings, output))?;
        }
    }
    Ok(())
}

fn known(name: &str) -> Result<&'static Setting, CommandError> {
    TABLE.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
        let failure = CommandError::from(Invalid::unknown_key("", name, &names));
        match nearest(name, &names) {
            Some(meant) => failure.hint(format!("did you mean {meant}?")),
            None => failure.hint("`postrider config list` says what each of them means"),
        }
    })
}

fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let alike = |known: &&'a str| (strsim::jaro(name, known), *known);
    let likely = names.iter().map(alike).filter(|(score, _)| *score >= ALIKE_MIN);
    likely.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

fn parsed(changes: &[String]) -> Result<Vec<(&'static Setting, String)>, CommandError> {
    let mut seen = BTreeSet::new();
    let one = |change: &String| {
        let (name, value) = change
            .split_once('=')
            .ok_or_else(|| CommandError::usage(format!("{change}: must be written as NAME=VALUE")))?;
        let setting = known(name)?;
        if !seen.insert(setting.name) {
            return Err(CommandError::usage(format!("{name} is given more than once")));
        }
        Ok((setting, value.to_owned()))
    };
    changes.iter().map(one).collect()
}

/// As the API shows them: a map.
fn shown(names: &[&Setting], settings: &Settings) -> Value {
    let value = |setting: &&Setting| (setting.name.to_owned(), view::setting(setting, settings));
    names.iter().map(value).collect::<Map<_, _>>().into()
}

fn changed(names: &[&Setting], settings: &Settings) -> String {
    let line = |setting: &&Setting| {
        let value = settings.value(setting.name).unwrap_or_default();
        format!("{} is {}", setting.name, with_unit(&value, setting))
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn list_json(settings: &Settings) -> Value {
    let item = |setting: &Setting| {
        let mut item = json!({
            "name": setting.name,
            "value": view::setting(setting, settings),
            "default": view::setting(setting, &Settings::default()),
            "unit": setting.unit,
            "meaning": setting.meaning,
        });
        match &setting.kind {
            SettingKind::Whole { min, max } => {
                item["min"] = json!(min);
                item["max"] = json!(max);
            }
            SettingKind::Choice(choices) => item["choices"] = json!(choices),
        }
        item
    };
    json!({ "items": TABLE.iter().map(item).collect::<Vec<_>>(), "next": null })
}

fn list_text(settings: &Settings, output: Output) -> String {
    let row = |setting: &Setting| {
        let range = match &setting.kind {
            SettingKind::Whole { min, max } => format!("{min} to {max}"),
            SettingKind::Choice(choices) => choices.join(", "),
        };
        let value = settings.value(setting.name).unwrap_or_default();
        vec![
            setting.name.to_owned(),
            match value == setting.default {
                true => with_unit(&value, setting),
                false => format!("{} (default {})", with_unit(&value, setting), setting.default),
            },
            range,
            setting.meaning.to_owned(),
        ]
    };
    output.table(&["setting", "value", "range", "meaning"], TABLE.iter().map(row).collect())
}

fn with_unit(value: &str, setting: &Setting) -> String {
    format!("{value} {}", setting.unit).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_taken_for_the_nearest_and_nonsense_for_none() {
        let names: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
        for (typed, meant) in [
            ("retry_max_dealy", Some("retry_max_delay")),
            ("max-queue-size", Some("max_queue_size")),
            ("archiv", Some("archive")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, &names), meant, "{typed}");
        }
    }
}
