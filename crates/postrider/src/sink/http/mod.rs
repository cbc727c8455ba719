//! Delivers over HTTP/1.1 and HTTP/2. A 2xx status is the acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use tokio::time::Instant;

use super::net::{Gate, Resolve};
use super::secret::Secrets;
use super::{Delivery, Environment, Sink};
use crate::endpoint::Endpoint;
use crate::protocol::Protocol;
use crate::verdict::{Failure, Receipt};

use answer::RetryStatus;
use connector::Connector;
use pool::Pool;
use redirect::Redirects;
use request::Template;

mod origin;
mod request;
mod encoding;
mod cloudevents;
mod pool;
mod connector;
mod connection;
mod tls;
mod answer;
mod redirect;

type Body = Full<bytes::Bytes>;
type Request = http::Request<Body>;

pub(super) struct HttpSink {
    template: Template,
    pool: Pool,
    redirects: Redirects,
    retry_status: RetryStatus,
    timeout: Duration,
}

impl HttpSink {
    pub(super) fn connect(
        endpoint: &Endpoint,
        environment: &Environment,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, Failure> {
        let config = &endpoint.config;
        let (origin, target) = origin::parse(config)?;
        let connector = Arc::new(Connector::new(config, Gate::new(environment, resolver)));
        // A config that cannot be trusted is told now, not at the first message.
        if origin.tls {
            connector.prepare_tls()?;
        }
        Ok(Self {
            template: Template::new(endpoint, &origin, target, &Secrets::new(environment))?,
            redirects: Redirects::new(config, &connector),
            retry_status: RetryStatus::new(config),
            pool: Pool::new(origin, connector, endpoint.max_in_flight() as usize),
            timeout: Protocol::Http.timeout(config),
        })
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Failure> {
        let options = &delivery.message.options;
        let timeout = crate::protocol::seconds(options, "timeout").unwrap_or(self.timeout);
        let deadline = Instant::now() + timeout;
        let request = self.template.fill(delivery)?;
        let answer = match self.redirects.are_followed() {
            false => self.pool.send(request).await?,
            true => Box::pin(self.redirects.send(&self.pool, request)).await?,
        };
        let (result, connection) = answer.judge(delivery, &self.retry_status, deadline).await;
        if let Some(connection) = connection {
            self.pool.put(connection);
        }
        result
    }
}
