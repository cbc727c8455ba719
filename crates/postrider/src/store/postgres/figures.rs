//! The store's figures, from `postrider.metrics()`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use postgres_types::Json;
use tokio_postgres::Row;

use super::{PostgresStore, SharedState};
use crate::store::{Figure, Figures, Result};

#[async_trait]
impl Figures for PostgresStore {
    async fn figures(&self) -> Result<Vec<Figure>> {
        let mut figures = figures(&self.shared).await?;
        figures.push(self.shared.refusals.figure());
        Ok(figures)
    }
}

pub(super) async fn figures(shared: &SharedState) -> Result<Vec<Figure>> {
    // Every node has its own attempt figures under that name.
    let figures =
        "SELECT name, labels, value FROM postrider.metrics() WHERE name <> 'postrider_attempts_total'";
    let rows = shared.prompt.query(figures, &[]).await?;
    let figure = |row: &Row| Figure {
        name: row.get(0),
        labels: row.get::<_, Json<BTreeMap<String, String>>>(1).0,
        value: row.get(2),
    };
    Ok(rows.iter().map(figure).collect())
}
