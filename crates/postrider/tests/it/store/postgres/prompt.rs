//! Somebody at an SQL prompt: statements in, what the server says out, as text.

use postrider::tokio_postgres::{Client, SimpleQueryMessage};
use serde_json::{Value, json};
use test_servers::Database;

use super::{Postgres, at_rest, connect};
use crate::store::world::World;

pub(in crate::store) struct Prompt(Client);

/// What the server says to a statement that it does not run.
#[derive(Debug, PartialEq)]
pub(in crate::store) struct Refusal {
    pub(in crate::store) code: String,
    pub(in crate::store) message: String,
}

/// A world, and its owner at a prompt.
pub(in crate::store) async fn start() -> (World<Postgres>, Prompt) {
    let world = World::start().await;
    let owner = Prompt::of(&world).await;
    (world, owner)
}

/// The owner of a database with an endpoint `a` and without a node: quicker to have than a world.
pub(in crate::store) async fn alone() -> (Database, Prompt) {
    let database = at_rest().await;
    let owner = Prompt::new(database.connect().await);
    owner.endpoint("a", json!({})).await;
    (database, owner)
}

impl Prompt {
    pub(in crate::store) fn new(client: Client) -> Self {
        Self(client)
    }

    /// Of the database's owner.
    pub(in crate::store) async fn of(world: &World<Postgres>) -> Self {
        Self(connect(world).await)
    }

    /// NULL is None.
    pub(in crate::store) async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        match self.ask(sql).await {
            Ok(rows) => rows,
            Err(refusal) => panic!("{sql}: {refusal:?}"),
        }
    }

    /// The first column; NULL is empty.
    pub(in crate::store) async fn column(&self, sql: &str) -> Vec<String> {
        self.rows(sql).await.into_iter().map(|row| row[0].clone().unwrap_or_default()).collect()
    }

    /// The only column of the only row; NULL is empty.
    pub(in crate::store) async fn value(&self, sql: &str) -> String {
        let mut values = self.column(sql).await;
        assert_eq!(values.len(), 1, "{sql}: {values:?}");
        values.remove(0)
    }

    pub(in crate::store) async fn number(&self, sql: &str) -> i64 {
        let value = self.value(sql).await;
        value.parse().unwrap_or_else(|_| panic!("{sql}: {value} is no number"))
    }

    pub(in crate::store) async fn json(&self, sql: &str) -> Value {
        let value = self.value(sql).await;
        serde_json::from_str(&value).unwrap_or_else(|_| panic!("{sql}: {value} is no JSON"))
    }

    /// What metrics() says was counted.
    pub(in crate::store) async fn counted(&self, what: &str) -> i64 {
        let name = format!("postrider_{what}_total");
        self.number(&format!("SELECT coalesce(sum(value), 0) FROM postrider.metrics() WHERE name = '{name}'"))
            .await
    }

    pub(in crate::store) async fn run(&self, sql: &str) {
        self.rows(sql).await;
    }

    pub(in crate::store) async fn endpoint(&self, name: &str, options: Value) {
        let config = json!({"url": "https://example.com/hook"});
        let create =
            format!("SELECT postrider.create_endpoint('{name}', 'http', '{config}', options => '{options}')");
        self.run(&create).await;
    }

    pub(in crate::store) async fn configure(&self, name: &str, value: u64) {
        self.run(&format!("SELECT postrider.configure('{name}', '{value}')")).await;
    }

    pub(in crate::store) async fn refusal(&self, sql: &str) -> Refusal {
        match self.ask(sql).await {
            Ok(rows) => panic!("{sql} was done: {rows:?}"),
            Err(refusal) => refusal,
        }
    }

    /// By SQLSTATE, with a sentence that says so much.
    pub(in crate::store) async fn refuses(&self, sql: &str, code: &str, says: &str) {
        let refusal = self.refusal(sql).await;
        assert!(refusal.code == code && refusal.message.contains(says), "{sql}: {refusal:?}");
    }

    pub(in crate::store) async fn ask(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Refusal> {
        let answer = self.0.simple_query(sql).await.map_err(|error| {
            let said = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            Refusal { code: said.code().code().into(), message: said.message().into() }
        })?;
        let rows = answer.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }
}
