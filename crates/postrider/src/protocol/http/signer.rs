//! Credentials that are made for each request: an access token, or a signature of the request itself.

use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use jiff::Timestamp;

use super::Request;
use super::auth::Auth;
use super::config::HttpConfig;
use super::connector::Connector;
use super::oauth2::AccessTokens;
use super::proxy::HttpProxy;
use super::sigv4::SigV4;
use super::token_endpoint::{AccessToken, TokenEndpoint};
use crate::endpoint::Endpoint;
use crate::sink::secret::Secrets;
use crate::sink::secret_mask::SecretMask;
use crate::sink::{Delivery, Environment, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) struct RequestSigner {
    kind: SignerKind,
    mask: SecretMask,
}

enum SignerKind {
    OAuth2(Arc<AccessTokens>),
    SigV4(SigV4),
}

impl RequestSigner {
    /// None where the same header serves all requests.
    pub(super) fn new(
        config: &HttpConfig,
        proxy: Option<&Arc<HttpProxy>>,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Option<Self>, Undelivered> {
        let kind = match &config.auth {
            None | Some(Auth::Basic { .. } | Auth::Bearer { .. }) => return Ok(None),
            Some(Auth::OAuth2(oauth2)) => {
                let connector = Connector::beside(config, proxy, environment)?;
                let endpoint = TokenEndpoint::new(oauth2, config, connector, environment)?;
                SignerKind::OAuth2(AccessTokens::new(endpoint))
            }
            Some(Auth::AwsSigv4(sigv4)) => SignerKind::SigV4(SigV4::new(sigv4, &Secrets::new(environment))?),
        };
        Ok(Some(Self { kind, mask: SecretMask::of(endpoint, environment)? }))
    }

    pub(super) fn attempt(&self, now: Timestamp) -> AttemptCredentials<'_> {
        AttemptCredentials { signer: self, now, token: None, made: Vec::new() }
    }
}

/// The credentials of one attempt.
pub(super) struct AttemptCredentials<'s> {
    signer: &'s RequestSigner,
    now: Timestamp,
    token: Option<Arc<AccessToken>>,
    /// What of it a receiver could repeat.
    made: Vec<String>,
}

impl AttemptCredentials<'_> {
    /// Called when nothing else of the request will change.
    pub(super) async fn sign(&mut self, request: &mut Request) -> Result<(), Undelivered> {
        match &self.signer.kind {
            SignerKind::OAuth2(tokens) => {
                let token = tokens.get(self.token.as_ref()).await?;
                request.headers_mut().insert(AUTHORIZATION, token.header.clone());
                self.made.push(token.text.clone());
                self.token = Some(token);
            }
            SignerKind::SigV4(sigv4) => self.made.push(sigv4.sign(request, self.now)),
        }
        Ok(())
    }

    /// For another URL of the same origin. A token fits there, too.
    pub(super) fn sign_again(&mut self, request: &mut Request) {
        match &self.signer.kind {
            SignerKind::OAuth2(_) => {}
            SignerKind::SigV4(sigv4) => self.made.push(sigv4.sign(request, self.now)),
        }
    }

    /// Is another [`AttemptCredentials::sign`] worth a try when the receiver refused the first? A token may have been
    /// revoked; a signature would be the same again.
    pub(super) fn can_renew(&self) -> bool {
        match &self.signer.kind {
            SignerKind::OAuth2(_) => true,
            SignerKind::SigV4(_) => false,
        }
    }

    /// What the engine masks in a kept answer does not include what was made during the attempt.
    pub(super) fn masked(
        &self,
        result: Result<Receipt, Failure>,
        delivery: &Delivery,
    ) -> Result<Receipt, Failure> {
        let masked = |body: Option<Bytes>| {
            let body = body?;
            let mask = self.signer.mask.and(&self.made);
            Some(mask.apply(&body, delivery.capture.bytes_max))
        };
        match result {
            Ok(receipt) => Ok(Receipt { body: masked(receipt.body), ..receipt }),
            Err(failure) => Err(Failure { body: masked(failure.body), ..failure }),
        }
    }
}
