//! Where a broker listens, and what its clients need to connect.

use std::fmt::{self, Display, Formatter};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{certificates, listens};
use crate::port;

/// Ports on 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerListeners {
    /// No user is needed. RabbitMQ always wants one: guest with the password guest.
    pub plain: u16,
    /// The same, encrypted.
    pub tls: u16,
    /// Refuses clients without a certificate of the authority. Of Redis and NATS it is a second server with other
    /// data, because these demand certificates on all ports or on none.
    pub mutual_tls: u16,
    /// Knows the users. Only of Kafka it is another port than `plain`.
    pub password: u16,
    /// Only of Kafka it is another port than `tls`.
    pub password_tls: u16,
    pub(super) folder: PathBuf,
}

/// How to tell that a broker works.
pub(super) enum Readiness {
    Listens(u16),
    Answers { port: u16, question: &'static [u8], first: u8 },
}

impl BrokerListeners {
    pub(super) fn new(folder: &Path) -> Self {
        let (plain, tls) = (port::free(), port::free());
        Self {
            plain,
            tls,
            mutual_tls: port::free(),
            password: plain,
            password_tls: tls,
            folder: folder.to_owned(),
        }
    }

    /// The certificate, in PEM as all of these files, that signed those of the broker and of its clients.
    pub fn authority(&self) -> PathBuf {
        self.folder.join(certificates::AUTHORITY)
    }

    pub fn client_certificate(&self) -> PathBuf {
        self.folder.join(certificates::CLIENT)
    }

    pub fn client_key(&self) -> PathBuf {
        self.folder.join(certificates::CLIENT_KEY)
    }

    /// Reads what `Display` wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.splitn(6, ' ');
        let mut port = || fields.next()?.parse().ok();
        Some(Self {
            plain: port()?,
            tls: port()?,
            mutual_tls: port()?,
            password: port()?,
            password_tls: port()?,
            folder: fields.next()?.into(),
        })
    }
}

/// For an environment variable.
impl Display for BrokerListeners {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        let Self { plain, tls, mutual_tls, password, password_tls, folder } = self;
        write!(text, "{plain} {tls} {mutual_tls} {password} {password_tls} {}", folder.display())
    }
}

impl Readiness {
    pub(super) fn now(&self) -> bool {
        match *self {
            Self::Listens(port) => listens(port),
            Self::Answers { port, question, first } => first_byte(port, question).ok() == Some(first),
        }
    }
}

fn first_byte(port: u16, question: &[u8]) -> std::io::Result<u8> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    // A broker that starts may accept long before it answers.
    connection.set_read_timeout(Some(Duration::from_millis(500)))?;
    connection.write_all(question)?;
    let mut first = [0];
    connection.read_exact(&mut first)?;
    Ok(first[0])
}
