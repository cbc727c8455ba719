//! One message outside the queue, to hear what a receiver says to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::attempt::{Connection, try_once};
use crate::endpoint::Endpoint;
use crate::message::{Message, MessageId, NewMessage};
use crate::sink::{Capture, Delivery, Environment, Undelivered};
use crate::verdict::Class;

/// A message that is about to be tried, once, as this node would try it.
pub struct Trial {
    endpoint: Arc<Endpoint>,
    environment: Arc<Environment>,
    delivery: Delivery,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    pub delivered: bool,
    pub status: Option<u16>,
    pub duration: Duration,
    /// What the receiver answered, its first bytes; secrets of the endpoint are masked in it.
    pub body: Option<Bytes>,
    pub class: Option<Class>,
    /// With its class tag in front, unless this node could not try at all.
    pub error: Option<String>,
}

impl Trial {
    pub(super) fn new(
        endpoint: Endpoint,
        environment: Arc<Environment>,
        store: Arc<str>,
        message: NewMessage,
        body_bytes_max: usize,
    ) -> Self {
        let now = Timestamp::now();
        let message = Message {
            // Never the id of a queued message, and another one each time.
            id: MessageId(-now.as_microsecond()),
            endpoint: endpoint.id,
            payload: message.payload,
            content_type: message.content_type,
            headers: message.headers,
            options: message.options,
            priority: message.priority,
            expires_at: None,
            correlation_id: message.correlation_id,
            ordering_key: message.ordering_key,
            event_type: message.event_type,
            created_at: now,
        };
        let capture = Capture { on_success: true, on_failure: true, bytes_max: body_bytes_max };
        let delivery = Delivery { message: Arc::new(message), store, attempt: 1, capture, now };
        Self { endpoint: Arc::new(endpoint), environment, delivery }
    }

    pub async fn run(self) -> TrialReport {
        let endpoint = &self.endpoint;
        let connection = Connection::new(endpoint.clone(), self.environment.clone());
        let timeout = endpoint.protocol.attempt_timeout(&endpoint.config, &self.delivery.message.options);
        let began = Instant::now();
        let (result, _) = try_once(&connection, &self.delivery, timeout).await;
        let duration = began.elapsed();
        match result {
            Ok(receipt) => TrialReport {
                delivered: true,
                status: receipt.status,
                duration,
                body: receipt.body,
                class: None,
                error: None,
            },
            Err(Undelivered::Failed(failure)) => TrialReport {
                delivered: false,
                status: failure.status,
                duration,
                class: Some(failure.class),
                error: Some(failure.tagged()),
                body: failure.body,
            },
            Err(Undelivered::Short(shortage)) => TrialReport {
                delivered: false,
                status: None,
                duration,
                class: None,
                error: Some(shortage.to_string()),
                body: None,
            },
        }
    }
}
