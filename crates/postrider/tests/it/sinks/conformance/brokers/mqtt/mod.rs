//! MQTT 5 and 3.1.1, looked at by a subscriber over a plain socket.

mod own;
mod subscriber;
mod v3;
mod v5;

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use serde_json::json;

use super::*;
use subscriber::{Arrived, Subscriber};

/// MQTT keeps nothing for those who come later, so each target has its subscriber from the beginning.
async fn subscribe(listeners: &BrokerListeners, target: &str) {
    let (listeners, target) = (listeners.clone(), target.to_owned());
    let subscribing = tokio::task::spawn_blocking(move || {
        let subscriber = Subscriber::to(listeners.plain, &target);
        until_saved(&listeners, subscriber.name());
        SUBSCRIBERS.lock().unwrap().insert((listeners.plain, target), Arc::new(subscriber));
    });
    subscribing.await.unwrap();
}

async fn arrived(listeners: &BrokerListeners, target: &str) -> Vec<Arrived> {
    let subscriber = Arc::clone(&SUBSCRIBERS.lock().unwrap()[&(listeners.plain, target.to_owned())]);
    tokio::task::spawn_blocking(move || subscriber.all()).await.unwrap()
}

/// By port and target.
type Subscribers = HashMap<(u16, String), Arc<Subscriber>>;

static SUBSCRIBERS: LazyLock<Mutex<Subscribers>> = LazyLock::new(Mutex::default);

/// A broker that is killed then knows the subscription when it is back. mosquitto saves it by itself, within a second.
fn until_saved(listeners: &BrokerListeners, name: &str) {
    let authority = listeners.authority();
    let saved = authority.parent().unwrap().join("mosquitto.db");
    let has = |bytes: Vec<u8>| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    let begun = std::time::Instant::now();
    while !std::fs::read(&saved).is_ok_and(has) {
        assert!(begun.elapsed() < Duration::from_secs(30), "mosquitto does not save its sessions");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn config(port: u16, target: &str) -> Value {
    json!({"broker": "127.0.0.1", "port": port, "topic": target})
}

fn login(user: &str, password: &str) -> Value {
    json!({"username": user, "password": password})
}
