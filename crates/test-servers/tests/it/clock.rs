use std::time::Duration;

use jiff::Timestamp;
use test_servers::{Address, Database, StandingClock};

const SCHEMA: &str = "
    CREATE SCHEMA postrider;
    CREATE FUNCTION postrider._now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT clock_timestamp()'";

#[tokio::test]
async fn a_clock_stands_still_until_it_is_moved() {
    let start: Timestamp = "2026-01-15T12:00:00Z".parse().expect("a time");
    let database = Database::copied(SCHEMA, async |template: &Address| {
        template.connect().await.batch_execute(SCHEMA).await.expect("a schema");
        StandingClock::install(template, start).await;
    });
    let database = database.await;
    let owner = database.connect().await;
    let now = async || {
        owner.query_one("SELECT postrider._now()", &[]).await.expect("a time").get::<_, Timestamp>(0)
    };
    assert_eq!((now().await, now().await), (start, start));

    let clock = StandingClock::of(&database);
    let later = start + Duration::from_millis(90_500);
    assert_eq!(clock.advance(Duration::from_millis(90_500)), later);
    assert_eq!(now().await, later);

    let volatility = "SELECT provolatile = 's' FROM pg_proc WHERE oid = 'postrider._now()'::regprocedure";
    assert!(owner.query_one(volatility, &[]).await.expect("an answer").get::<_, bool>(0));
}
