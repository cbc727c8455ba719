//! Delivers over HTTP/1.1 and HTTP/2. A 2xx status is the acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use http_body_util::Full;
use tokio::time::Instant;

use super::MessageOptions;
use crate::endpoint::Endpoint;
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Environment, Sink, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) use config::HTTP;

use answer::{HttpAnswer, RetryStatus};
use config::HttpConfig;
use connector::Connector;
use origin::{Origin, RequestTarget};
use pool::ConnectionPool;
use proxy::HttpProxy;
use redirect::{LastAnswer, Redirects};
use request::Template;
use signer::{AttemptCredentials, RequestSigner};

mod config;
mod auth;
pub mod signature;
mod origin;
mod request;
mod encoding;
mod signer;
mod oauth2;
mod token_endpoint;
mod sigv4;
mod pool;
mod connector;
mod proxy;
mod connection;
mod answer;
mod redirect;

type RequestBody = Full<bytes::Bytes>;
type Request = http::Request<RequestBody>;

struct HttpSink {
    template: Template,
    /// None where all requests carry the same credentials, or none.
    signer: Option<RequestSigner>,
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
        let proxy = config.proxy.as_ref().map(|proxy| HttpProxy::new(proxy, &config.tls, environment));
        let proxy = proxy.transpose()?.map(Arc::new);
        let proxy = proxy.as_ref();
        let connector = Arc::new(Connector::new(config, &config.tls, proxy, environment)?);
        let elsewhere = Connector::new(config, &config.tls.without_identity(), proxy, environment)?;
        // A config that cannot be trusted fails here, not at the first message.
        if origin.tls {
            connector.prepare_tls()?;
        }
        Ok(Self {
            template: Template::new(config, endpoint, &origin, RequestTarget::of(&config.url), &secrets)?,
            signer: RequestSigner::new(config, proxy, endpoint, environment)?,
            redirects: Redirects::new(
                config.max_redirects,
                &connector,
                Arc::new(elsewhere),
                &environment.kept,
            ),
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

    async fn deliver_signed(
        &self,
        signer: &RequestSigner,
        request: Request,
        delivery: &Delivery,
        deadline: Instant,
    ) -> Result<Receipt, Undelivered> {
        let mut credentials = signer.attempt(delivery.now);
        let mut last = self.send_signed(request.clone(), &mut credentials).await?;
        let is_refused = last.answer.response.status() == StatusCode::UNAUTHORIZED && last.at_home;
        if is_refused && credentials.can_renew() {
            if let Some(connection) = last.answer.set_aside(deadline).await {
                self.pool.put(connection);
            }
            let again = self.send_signed(request, &mut credentials).await;
            last = again.map_err(Undelivered::after_a_beginning)?;
        }
        let result = self.judge(last.answer, delivery, deadline).await;
        Ok(credentials.masked(result, delivery)?)
    }

    async fn send_signed(
        &self,
        mut request: Request,
        credentials: &mut AttemptCredentials<'_>,
    ) -> Result<LastAnswer, Undelivered> {
        credentials.sign(&mut request).await?;
        match self.redirects.are_followed() {
            false => Ok(LastAnswer { answer: self.pool.send(request).await?, at_home: true }),
            true => self.redirects.send(&self.pool, request, Some(credentials)).await,
        }
    }

    async fn judge(
        &self,
        answer: HttpAnswer,
        delivery: &Delivery,
        deadline: Instant,
    ) -> Result<Receipt, Failure> {
        let (result, connection) = answer.judge(delivery, &self.retry_status, deadline).await;
        if let Some(connection) = connection {
            self.pool.put(connection);
        }
        result
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let options = MessageOptions::of(&delivery.message.options);
        let deadline = Instant::now() + options.timeout.unwrap_or(self.timeout);
        let request = self.template.fill(delivery)?;
        if let Some(signer) = &self.signer {
            return Box::pin(self.deliver_signed(signer, request, delivery, deadline)).await;
        }
        let answer = match self.redirects.are_followed() {
            false => self.pool.send(request).await?,
            true => Box::pin(self.redirects.send(&self.pool, request, None)).await?.answer,
        };
        Ok(self.judge(answer, delivery, deadline).await?)
    }
}
