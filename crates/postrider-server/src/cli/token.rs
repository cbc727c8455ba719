//! `postrider token …`: who may use the API.

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use postrider::StoreError;
use postrider::store::{NewToken, Scope, TokenRecord, token_prefix};
use serde_json::json;

use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::view;

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and show it, once; from the first one on every request needs one
    Create {
        /// For people: whose it is
        name: String,
        scope: ScopeName,
    },
    /// List them by how they begin
    List,
    /// Take one back; every node refuses it within a second
    Revoke {
        /// How it begins, as `list` shows it, or all of it
        prefix: String,

        /// Also if it is the last one: without any, every client that reaches a node on loopback may do everything
        #[arg(long)]
        last: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ScopeName {
    /// Everything
    Admin,
    /// Send, publish, cancel, and look at single messages
    Application,
    /// Read states and figures; no payloads, headers, configs, filters, templates or schemas
    Monitor,
}

impl From<ScopeName> for Scope {
    fn from(name: ScopeName) -> Self {
        match name {
            ScopeName::Admin => Self::Admin,
            ScopeName::Application => Self::Application,
            ScopeName::Monitor => Self::Monitor,
        }
    }
}

pub(super) async fn run(
    command: TokenCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = place.open_tool().await?;
    match command {
        TokenCommand::Create { name, scope } => {
            let issued = store.create_token(NewToken { name, scope: scope.into() }).await?;
            let prefix = issued.record.prefix.clone();
            // Only the token on stdout: it goes straight into a file or a variable.
            let text = match output.json {
                true => json!(issued).to_string(),
                false => issued.token,
            };
            let shown = output.try_line(&text).and_then(|is_read| match is_read {
                true => Ok(()),
                false => Err(CommandError::failed("cannot write the answer: the reader is gone")),
            });
            if let Err(failure) = shown {
                store.revoke_token(&prefix, true).await?;
                return Err(failure.hint("the token was not shown, so it was revoked; make another"));
            }
            if !output.json {
                eprintln!("keep it: it is not shown again");
            }
        }
        TokenCommand::List => {
            let tokens = store.tokens().await?;
            output.document(
                || json!({ "items": tokens, "next": null }).to_string(),
                || list_text(&tokens, output, Timestamp::now()),
            )?;
        }
        TokenCommand::Revoke { prefix, last } => {
            let prefix = token_prefix(&prefix);
            store.revoke_token(prefix, last).await.map_err(refused)?;
            output.document(
                || json!({ "token": prefix, "done": "revoked" }).to_string(),
                || format!("token {prefix} is revoked"),
            )?;
        }
    }
    Ok(())
}

fn refused(error: StoreError) -> CommandError {
    let is_last = matches!(error, StoreError::Conflict(_));
    let failure = CommandError::from(error);
    if is_last { failure.hint("make the next one first, or say --last") } else { failure }
}

fn list_text(tokens: &[TokenRecord], output: Output, now: Timestamp) -> String {
    if tokens.is_empty() {
        return "no tokens; the API answers on loopback only, to anyone there".to_owned();
    }
    let row = |token: &TokenRecord| {
        vec![
            token.prefix.clone(),
            token.name.clone(),
            token.scope.to_string(),
            view::age(token.created_at, now),
        ]
    };
    output.table(&["token", "name", "scope", "age"], tokens.iter().map(row).collect())
}
