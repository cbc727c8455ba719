//! Subscriptions.

use postgres_types::Json;
use tokio_postgres::Row;

use super::SharedState;
use super::row::json;
use crate::error::StoreError;
use crate::event::{NewSubscription, Subscribed, Subscription};
use crate::store::Result;

pub(super) async fn create(shared: &SharedState, new: NewSubscription) -> Result<Subscribed> {
    new.check()?;
    if new.endpoint.contains('\0') {
        return Err(StoreError::unknown_endpoint(new.endpoint));
    }
    let subscribe = "SELECT id, existed FROM postrider._subscribe($1, $2, $3, $4)";
    let (filter, template) = (new.filter.as_ref().map(Json), new.template.as_ref().map(Json));
    let made = shared.pool.query_one(subscribe, &[&new.pattern, &new.endpoint, &filter, &template]).await?;
    Ok(Subscribed { subscription: by_id(shared, made.get(0)).await?, existed: made.get(1) })
}

pub(super) async fn by_id(shared: &SharedState, id: i64) -> Result<Subscription> {
    let one = "SELECT s.id, s.pattern, e.name, s.filter, s.template, s.enabled, s.created_at
               FROM postrider.subscriptions s JOIN postrider.endpoints e ON e.id = s.endpoint_id WHERE s.id = $1";
    let unknown = || StoreError::Unknown { what: "subscription", name: id.to_string() };
    shared.prompt.query(one, &[&id]).await?.first().map(subscription).ok_or_else(unknown)
}

pub(super) async fn list(
    shared: &SharedState,
    after: Option<i64>,
    limit: usize,
) -> Result<Vec<Subscription>> {
    let page = "SELECT s.id, s.pattern, e.name, s.filter, s.template, s.enabled, s.created_at
                FROM postrider.subscriptions s JOIN postrider.endpoints e ON e.id = s.endpoint_id
                WHERE s.id > $1 ORDER BY s.id LIMIT $2";
    let rows = shared.prompt.query(page, &[&after.unwrap_or(0), &(limit as i64)]).await?;
    Ok(rows.iter().map(subscription).collect())
}

fn subscription(row: &Row) -> Subscription {
    Subscription {
        id: row.get(0),
        pattern: row.get(1),
        endpoint: row.get(2),
        filter: json(row, 3),
        template: json(row, 4),
        enabled: row.get(5),
        created_at: row.get(6),
    }
}
