use std::time::Duration;

use test_servers::{Binaries, Database, Postgres};

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

#[tokio::test]
async fn a_promoted_standby_has_what_was_committed() {
    let mut primary = Postgres::start().expect("a server");
    let standby = primary.synchronous_standby().expect("a standby");
    primary.query("CREATE TABLE letters AS SELECT 7 AS n").expect("a table");
    primary.stop_immediately();
    assert!(standby.query("INSERT INTO letters VALUES (8)").is_err(), "a standby takes no writes");
    standby.promote().expect("a new primary");
    assert_eq!(
        standby.query("INSERT INTO letters VALUES (8); SELECT sum(n) FROM letters").expect("a sum"),
        "15"
    );
}

#[tokio::test]
async fn the_oldest_and_the_newest_version_run() {
    for version in [14, 18] {
        let Some(binaries) = Binaries::downloaded(version) else { continue };
        let server = Postgres::of(binaries).expect("a server");
        let said = server.query("SELECT version()").expect("an answer");
        assert!(said.starts_with(&format!("PostgreSQL {version}.")), "{said}");
        Database::empty_on(&server.url()).await.connect().await;
    }
}
