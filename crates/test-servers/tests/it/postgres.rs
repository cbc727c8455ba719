use std::time::Duration;

use test_servers::{Database, Postgres};

#[tokio::test]
async fn what_was_committed_stays_when_a_server_crashes() {
    let mut server = Postgres::start().expect("a server");
    server.query("CREATE TABLE letters AS SELECT 7 AS n").expect("a table");
    server.stop_immediately();
    assert!(server.query("SELECT 1").is_err());
    server.start_again().expect("the same server");
    assert_eq!(server.query("SELECT n FROM letters").expect("a row"), "7");
}

#[tokio::test]
async fn a_frozen_server_answers_when_it_thaws() {
    let server = Postgres::start().expect("a server");
    let database = Database::empty_on(&server.url()).await;
    let client = database.connect().await;
    server.freeze();
    let asked = client.query_one("SELECT 7", &[]);
    tokio::pin!(asked);
    let silence = tokio::time::timeout(Duration::from_millis(200), &mut asked).await;
    assert!(silence.is_err(), "a frozen server answered");
    server.thaw();
    assert_eq!(asked.await.expect("a late answer").get::<_, i32>(0), 7);
}
