//! `postrider migrate`: create the store, or bring an older one up to date.

use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) async fn run(new_store_id: bool, url: &StoreUrl, output: Output) -> Result<(), Failure> {
    let created = !url.exists().await?;
    match new_store_id {
        true => url.migrate_with_new_id().await?,
        false => url.migrate().await?,
    }
    let status = url.open_tool().await?.status().await?;
    output.document(
        || {
            json!({
                "store": status.store,
                "url": url.to_string(),
                "created": created,
                "schema_version": status.schema_version,
            })
            .to_string()
        },
        || {
            let done = if created { "created" } else { "up to date" };
            format!("{url} is {done}: schema version {}, store id {}", status.schema_version, status.store)
        },
    );
    Ok(())
}
