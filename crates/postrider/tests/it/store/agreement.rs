//! Every way in makes the same of events: SQL and the library, on both stores. The API has its own test of the same table.

use std::time::{Duration, Instant};

use postrider::rusqlite::{Connection, params};
use postrider::store::DlqFilter;
use postrider::{Json, NewEvent, NewEventType, NewSubscription, Operate, PubSub};
use serde_json::json;

use super::any_language::said;
use super::postgres::Postgres;
use super::postgres::prompt::{self, Prompt};
use super::shop::Shop;
use super::sqlite::Sqlite;
use super::world::{Harness, World};
use crate::event_cases::cases;

/// One of them. Refusals are told as `field: rule`.
trait Way {
    async fn create(&mut self, event_type: &str, schema: Option<&str>) -> Result<(), String>;
    async fn drop(&mut self, event_type: &str);
    async fn subscribe(
        &mut self,
        pattern: &str,
        filter: Option<&str>,
        template: Option<&str>,
    ) -> Result<i64, String>;
    async fn unsubscribe(&mut self, id: i64);
    /// The payloads of the messages that it made.
    async fn publish(&mut self, event_type: &str, payload: &str) -> Result<Vec<String>, String>;
}

async fn agrees(mut way: impl Way) {
    let cases = cases();
    for name in &cases.patterns[0].among {
        way.create(name, None).await.unwrap();
    }
    for case in &cases.patterns {
        let id = way.subscribe(&case.pattern, None, None).await.unwrap();
        let mut fits = Vec::new();
        for name in &case.among {
            fits.extend(way.publish(name, "1").await.unwrap().iter().map(|_| name.clone()));
        }
        assert_eq!(fits, case.fits, "{}", case.pattern);
        way.unsubscribe(id).await;
    }
    for pattern in &cases.refused_patterns {
        let refused = way.subscribe(pattern, None, None).await.expect_err(pattern);
        assert!(
            refused.starts_with("pattern: must be the name of an event type, one that ends with "),
            "{refused}"
        );
    }
    for case in &cases.filters {
        let id = way.subscribe("orders", Some(case.filter.get()), None).await.unwrap();
        let passes = way.publish("orders", case.payload.get()).await.unwrap().len() == 1;
        assert_eq!(passes, case.passes, "{} @> {}", case.payload, case.filter);
        way.unsubscribe(id).await;
    }
    for case in &cases.templates {
        let id = way.subscribe("orders", None, Some(case.template.get())).await.unwrap();
        assert_eq!(
            way.publish("orders", case.payload.get()).await.unwrap(),
            [case.sends.get()],
            "{}",
            case.template
        );
        way.unsubscribe(id).await;
    }
    way.subscribe("*", None, None).await.unwrap();
    for case in &cases.schemas {
        way.create("checked", Some(case.schema.get())).await.unwrap();
        let published = way.publish("checked", case.payload.get()).await;
        assert_eq!(published.as_ref().err(), case.says.as_ref(), "{} of {}", case.schema, case.payload);
        assert_eq!(published.unwrap_or_default().len(), usize::from(case.says.is_none()));
        way.drop("checked").await;
    }
    for case in &cases.refused_schemas {
        let refused = way.create("refused", Some(case.schema.get())).await;
        assert_eq!(refused.as_ref(), Err(&case.says), "{}", case.schema);
    }
}

/// The library on either store.
struct Library<H: Harness>(World<H>);

impl<H: Harness> Way for Library<H> {
    async fn create(&mut self, event_type: &str, schema: Option<&str>) -> Result<(), String> {
        let new = NewEventType { schema: schema.map(rule), ..NewEventType::new(event_type) };
        self.0.store().create_event_type(new).await.map(drop).map_err(|error| error.to_string())
    }

    async fn drop(&mut self, event_type: &str) {
        self.0.store().drop_event_type(event_type).await.unwrap();
    }

    async fn subscribe(
        &mut self,
        pattern: &str,
        filter: Option<&str>,
        template: Option<&str>,
    ) -> Result<i64, String> {
        let new = NewSubscription {
            filter: filter.map(rule),
            template: template.map(rule),
            ..NewSubscription::new(pattern, "a")
        };
        let made = self.0.store().subscribe(new).await;
        made.map(|made| made.subscription.id).map_err(|error| error.to_string())
    }

    async fn unsubscribe(&mut self, id: i64) {
        self.0.store().unsubscribe(id).await.unwrap();
    }

    async fn publish(&mut self, event_type: &str, payload: &str) -> Result<Vec<String>, String> {
        let event = NewEvent::new(event_type, payload.to_owned());
        let made = self.0.store().publish(event).await.map_err(|error| error.to_string())?;
        let mut payloads = Vec::new();
        for ticket in self.0.claim(self.0.a, 100).await {
            let payload = self.0.story(ticket.id).await.payload.unwrap();
            payloads.push(String::from_utf8(payload.to_vec()).unwrap());
            self.0.complete(ticket).await;
        }
        assert_eq!(payloads.len() as u64, made);
        Ok(payloads)
    }
}

fn rule(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

#[tokio::test]
async fn the_library_on_sqlite_agrees() {
    agrees(Library(World::<Sqlite>::start().await)).await;
}

#[tokio::test]
async fn the_library_on_postgresql_agrees() {
    agrees(Library(World::<Postgres>::start().await)).await;
}

/// SQL on PostgreSQL.
struct PostgresSql(Prompt);

impl PostgresSql {
    async fn ask(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        self.0.ask(sql).await.map_err(|refusal| refusal.message)
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map_or("NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")))
}

impl Way for PostgresSql {
    async fn create(&mut self, event_type: &str, schema: Option<&str>) -> Result<(), String> {
        let schema = quoted(schema);
        self.ask(&format!("SELECT postrider.create_event_type('{event_type}', schema => {schema})"))
            .await
            .map(drop)
    }

    async fn drop(&mut self, event_type: &str) {
        self.0.run(&format!("SELECT postrider.drop_event_type('{event_type}')")).await;
    }

    async fn subscribe(
        &mut self,
        pattern: &str,
        filter: Option<&str>,
        template: Option<&str>,
    ) -> Result<i64, String> {
        let (filter, template) = (quoted(filter), quoted(template));
        let rows =
            self.ask(&format!("SELECT postrider.subscribe('{pattern}', 'a', {filter}, {template})")).await?;
        Ok(rows[0][0].as_deref().unwrap().parse().unwrap())
    }

    async fn unsubscribe(&mut self, id: i64) {
        self.0.run(&format!("SELECT postrider.unsubscribe({id})")).await;
    }

    async fn publish(&mut self, event_type: &str, payload: &str) -> Result<Vec<String>, String> {
        let payload = quoted(Some(payload));
        let made = self.ask(&format!("SELECT postrider.publish('{event_type}', {payload})")).await?;
        let gone = "WITH gone AS (DELETE FROM postrider.queue RETURNING id, payload)
                    SELECT convert_from(payload, 'UTF8') FROM gone ORDER BY id";
        let payloads = self.0.column(gone).await;
        assert_eq!(made[0][0].as_deref(), Some(payloads.len().to_string().as_str()));
        Ok(payloads)
    }
}

#[tokio::test]
async fn sql_on_postgresql_agrees() {
    let (_database, owner) = prompt::alone().await;
    agrees(PostgresSql(owner)).await;
}

/// SQL on SQLite: the application stores, the node makes messages of it, or a dead letter.
struct SqliteSql {
    shop: Shop,
    seen: i64,
}

impl Way for SqliteSql {
    async fn create(&mut self, event_type: &str, schema: Option<&str>) -> Result<(), String> {
        let new = NewEventType { schema: schema.map(rule), ..NewEventType::new(event_type) };
        self.shop.store.create_event_type(new).await.map(drop).map_err(|error| error.to_string())
    }

    async fn drop(&mut self, event_type: &str) {
        self.shop.store.drop_event_type(event_type).await.unwrap();
    }

    async fn subscribe(
        &mut self,
        pattern: &str,
        filter: Option<&str>,
        template: Option<&str>,
    ) -> Result<i64, String> {
        let new = NewSubscription {
            filter: filter.map(rule),
            template: template.map(rule),
            ..NewSubscription::new(pattern, "a")
        };
        let made = self.shop.store.subscribe(new).await;
        made.map(|made| made.subscription.id).map_err(|error| error.to_string())
    }

    async fn unsubscribe(&mut self, id: i64) {
        self.shop.store.unsubscribe(id).await.unwrap();
    }

    async fn publish(&mut self, event_type: &str, payload: &str) -> Result<Vec<String>, String> {
        let insert = "INSERT INTO postrider_publish (event_type, payload) VALUES (?1, ?2)";
        self.shop.app.execute(insert, params![event_type, payload]).map_err(|error| said(&error))?;
        self.shop.fanned_out().await;
        let refused = DlqFilter { reason: Some("invalid_event".into()), ..DlqFilter::default() };
        for letter in self.shop.store.dlq(refused).await.unwrap() {
            if letter.listed.status == postrider::store::DlqStatus::Failed {
                self.shop.store.discard(letter.listed.id).await.unwrap();
                let error = letter.listed.last_error.unwrap();
                return Err(error.strip_prefix("[PERMANENT] ").expect("its class").to_owned());
            }
        }
        let payloads = payloads_after(&self.shop.app, &mut self.seen);
        Ok(payloads)
    }
}

fn payloads_after(app: &Connection, seen: &mut i64) -> Vec<String> {
    let mut statement = app
        .prepare("SELECT id, CAST(payload AS TEXT) FROM postrider_queue WHERE id > ?1 ORDER BY id")
        .unwrap();
    let rows: Vec<(i64, String)> = statement
        .query_map([*seen], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    *seen = rows.last().map_or(*seen, |(id, _)| *id);
    rows.into_iter().map(|(_, payload)| payload).collect()
}

impl Shop {
    /// Nothing that was stored is left to become messages.
    pub(crate) async fn fanned_out(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.stored_events() > 0 {
            assert!(Instant::now() < deadline, "stored events are not fanned out");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn stored_events(&self) -> i64 {
        self.app.query_row("SELECT count(*) FROM _postrider_events", [], |row| row.get(0)).unwrap()
    }
}

#[tokio::test]
async fn sql_on_sqlite_agrees() {
    let shop = Shop::open().await;
    shop.store.configure(vec![("max_queue_size".into(), json!(0).to_string())]).await.unwrap();
    agrees(SqliteSql { shop, seen: 0 }).await;
}
