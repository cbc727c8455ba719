//! Delivers over HTTP/1.1 and HTTP/2. A 2xx status is the acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use tokio::time::Instant;

use super::net::Gate;
use super::secret::Secrets;
use super::{Delivery, Environment, Sink, Undelivered};
use crate::endpoint::Endpoint;
use crate::protocol::Protocol;
use crate::verdict::Receipt;

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
    pub(super) fn connect(endpoint: &Endpoint, environment: &Environment) -> Result<Self, Undelivered> {
        let config = &endpoint.config;
        let (origin, target) = origin::parse(config)?;
        let connector = Arc::new(Connector::new(config, Gate::new(environment)));
        // A config that cannot be trusted is told now, not at the first message.
        if origin.tls {
            connector.prepare_tls()?;
        }
        Ok(Self {
            template: Template::new(endpoint, &origin, target, &Secrets::new(environment))?,
            redirects: Redirects::new(config, &connector, &environment.kept),
            retry_status: RetryStatus::new(config),
            pool: Pool::new(origin, connector, endpoint.max_in_flight() as usize, &environment.kept),
            timeout: Protocol::Http.timeout(config),
        })
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
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
        result.map_err(Undelivered::from)
    }
}
