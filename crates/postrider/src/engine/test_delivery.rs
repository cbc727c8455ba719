//! Delivers one message outside the queue, to test an endpoint.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::attempt::{EndpointSink, try_once};
use crate::endpoint::Endpoint;
use crate::message::{Message, MessageId, NewMessage};
use crate::sink::{Capture, Delivery, Environment, Undelivered};
use crate::store::{response_body, seconds};
use crate::verdict::Class;

/// One attempt as this node would make it, without a queued message.
pub struct TestDelivery {
    endpoint: Arc<Endpoint>,
    environment: Arc<Environment>,
    delivery: Delivery,
}

/// What a receiver said to a test message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestDeliveryReport {
    pub delivered: bool,
    /// Did the receiver acknowledge it? Where the protocol has no acknowledgement, a message that was sent may be lost.
    pub confirmed: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = crate::protocol::Protocol))]
    pub protocol: Cow<'static, str>,
    /// A status of that protocol.
    pub response_status: Option<u16>,
    #[serde(rename = "duration_seconds", with = "seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub duration: Duration,
    /// The first bytes of the answer; secrets of the endpoint are masked in it.
    #[serde(flatten, with = "response_body")]
    #[cfg_attr(feature = "openapi", schema(value_type = response_body::ResponseBody))]
    pub response_body: Option<Bytes>,
    pub class: Option<Class>,
    /// With its class tag in front, unless this node could not start the attempt.
    pub error: Option<String>,
}

impl TestDelivery {
    pub(super) fn new(
        endpoint: Endpoint,
        environment: Arc<Environment>,
        store: Arc<str>,
        message: NewMessage,
        body_bytes_max: usize,
    ) -> Self {
        let now = Timestamp::now();
        let message = Message {
            // Negative: never the id of a queued message. A new one each time.
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

    pub async fn run(self) -> TestDeliveryReport {
        let endpoint = &self.endpoint;
        let sink = EndpointSink::new(endpoint.clone(), self.environment.clone());
        let timeout = endpoint.attempt_timeout(&self.delivery.message.options);
        let began = Instant::now();
        let result = try_once(&sink, &self.delivery, timeout).await;
        let duration = began.elapsed();
        let nothing = TestDeliveryReport {
            delivered: false,
            confirmed: false,
            protocol: endpoint.protocol.as_str().into(),
            response_status: None,
            duration,
            response_body: None,
            class: None,
            error: None,
        };
        match result {
            Ok(receipt) => TestDeliveryReport {
                delivered: true,
                confirmed: endpoint.config.unconfirmed_by(&self.delivery.message.options).is_none(),
                response_status: receipt.status,
                response_body: receipt.body,
                ..nothing
            },
            Err(Undelivered::Failed(failure)) => TestDeliveryReport {
                response_status: failure.status,
                class: Some(failure.class),
                error: Some(failure.tagged()),
                response_body: failure.body,
                ..nothing
            },
            Err(Undelivered::Short(shortage)) => {
                TestDeliveryReport { error: Some(shortage.to_string()), ..nothing }
            }
        }
    }
}
