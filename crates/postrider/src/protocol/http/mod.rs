//! Delivers over HTTP/1.1 and HTTP/2. A 2xx status is the acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use tokio::time::Instant;

use super::MessageOptions;
use crate::endpoint::Endpoint;
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Environment, Sink, Undelivered};
use crate::verdict::Receipt;

pub(super) use config::HTTP;

use answer::RetryStatus;
use config::HttpConfig;
use connector::Connector;
use origin::{Origin, RequestTarget};
use pool::ConnectionPool;
use redirect::Redirects;
use request::Template;

mod config;
pub mod signature;
mod origin;
mod request;
mod encoding;
mod pool;
mod connector;
mod connection;
mod answer;
mod redirect;

type RequestBody = Full<bytes::Bytes>;
type Request = http::Request<RequestBody>;

struct HttpSink {
    template: Template,
    pool: ConnectionPool,
    redirects: Redirects,
    retry_status: RetryStatus,
    timeout: Duration,
}

impl HttpSink {
    fn connect(
        config: &HttpConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let origin = Origin::of_config(&config.url)?;
        let secrets = Secrets::new(environment);
        let connector = Arc::new(Connector::new(config, &config.tls, environment)?);
        let elsewhere = Arc::new(Connector::new(config, &config.tls.without_identity(), environment)?);
        // A config that cannot be trusted fails here, not at the first message.
        if origin.tls {
            connector.prepare_tls()?;
        }
        Ok(Self {
            template: Template::new(config, endpoint, &origin, RequestTarget::of(&config.url), &secrets)?,
            redirects: Redirects::new(config.max_redirects, &connector, elsewhere, &environment.kept),
            retry_status: config.retry_status.clone(),
            pool: ConnectionPool::new(
                origin,
                connector,
                endpoint.max_in_flight() as usize,
                &environment.kept,
            ),
            timeout: config.timeout,
        })
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let options = MessageOptions::of(&delivery.message.options);
        let deadline = Instant::now() + options.timeout.unwrap_or(self.timeout);
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
