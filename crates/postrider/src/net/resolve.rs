//! Names to addresses.

use std::fs::File;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use async_trait::async_trait;

use super::{Resource, blocking};

#[async_trait]
pub trait Resolve: std::fmt::Debug + Send + Sync {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = name.to_owned();
        let look_up = move || {
            let found = (name.as_str(), 0).to_socket_addrs().map_err(lookup_failed)?;
            Ok(found.map(|address| address.ip()).collect())
        };
        blocking(look_up).await?
    }
}

/// The operating system calls a lookup that could not open a socket a temporary failure.
fn lookup_failed(error: io::Error) -> io::Error {
    match File::open("/dev/null") {
        Err(cause) if Resource::lacking(&cause).is_some() => cause,
        Ok(_) | Err(_) => error,
    }
}
