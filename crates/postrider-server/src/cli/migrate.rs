//! `postrider migrate`: create the store, or bring an older one up to date.

use postrider::Operate;
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) async fn run(new_store_id: bool, url: &StoreUrl, output: Output) -> Result<(), Failure> {
    let created = !url.exists();
    let mut store = if new_store_id { url.open_renaming().await? } else { url.open_migrating().await? };
    if new_store_id {
        store.renew_name().await?;
        // The name is read when a store is opened.
        drop(store);
        store = url.open_tool().await?;
    }
    let status = store.status().await?;
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
