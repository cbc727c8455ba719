//! Where a command works: on a store, or through a node that runs on one.

use std::fmt;
use std::sync::Arc;

use postrider::Operate;

use crate::failure::CommandError;
use crate::remote::{Remote, RemoteArgs};
use crate::store_url::StoreUrl;

pub(crate) enum StoreOrNode {
    Store(StoreUrl),
    Node(Arc<Remote>),
}

impl StoreOrNode {
    pub(crate) fn node(arguments: RemoteArgs) -> Result<Self, CommandError> {
        Ok(Self::Node(Arc::new(Remote::new(arguments)?)))
    }

    /// For a command beside a running node.
    pub(crate) async fn open_tool(&self) -> Result<Arc<dyn Operate>, CommandError> {
        match self {
            Self::Store(url) => url.open_tool().await,
            Self::Node(remote) => Ok(Arc::clone(remote) as Arc<dyn Operate>),
        }
    }

    /// What is said where a payload would be; a node does not say whether a token may not see it.
    pub(crate) fn no_payload(&self) -> String {
        match self {
            Self::Node(remote) if remote.has_token() => "(not kept, or not shown to this token)".to_owned(),
            Self::Store(_) | Self::Node(_) => "(not kept)".to_owned(),
        }
    }
}

impl fmt::Display for StoreOrNode {
    /// Without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(url) => url.fmt(f),
            Self::Node(remote) => remote.fmt(f),
        }
    }
}
