//! The store's figures: what SQL calls `metrics()`.

use std::collections::BTreeMap;

use postgres_types::Json;
use tokio_postgres::Row;

use super::Shared;
use crate::store::{Figure, Result};

pub(super) async fn figures(shared: &Shared) -> Result<Vec<Figure>> {
    let rows = shared.pool.query("SELECT name, labels, value FROM postrider.metrics()", &[]).await?;
    let figure = |row: &Row| Figure {
        name: row.get(0),
        labels: row.get::<_, Json<BTreeMap<String, String>>>(1).0,
        value: row.get(2),
    };
    Ok(rows.iter().map(figure).collect())
}
