//! `postrider migrate`: create the store, or bring an older one up to date.

use serde_json::json;

use crate::failure::CommandError;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) async fn run(new_store_id: bool, url: &StoreUrl, output: Output) -> Result<(), CommandError> {
    let created = !url.exists().await?;
    let left = match new_store_id {
        true => url.migrate_with_new_id().await?,
        false => url.migrate().await?,
    };
    let status = url.open_tool().await?.status().await?;
    output.document(
        || {
            json!({
                "store": status.store,
                "url": url.to_string(),
                "created": created,
                "schema_version": status.schema_version,
                "role_statements": left,
            })
            .to_string()
        },
        || {
            let done = if created { "created" } else { "up to date" };
            let mut text = format!(
                "{url} is {done}: schema version {}, store id {}",
                status.schema_version, status.store
            );
            if !left.is_empty() {
                text.push_str("\n\nThis role may not make roles. Run these statements as a role that may (or only the CREATE ROLE among them, and then migrate again):\n\n");
                left.iter().for_each(|statement| text.push_str(&format!("{statement};\n")));
            }
            text
        },
    )
}
