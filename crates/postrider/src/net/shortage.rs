//! What this node lacks. An attempt that cannot be made for want of it says nothing about its receiver.

use std::fmt;
use std::io;

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    OpenFiles,
    LocalPorts,
    Memory,
    Threads,
}

impl Resource {
    pub const ALL: [Self; 4] = [Self::OpenFiles, Self::LocalPorts, Self::Memory, Self::Threads];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenFiles => "open_files",
            Self::LocalPorts => "local_ports",
            Self::Memory => "memory",
            Self::Threads => "threads",
        }
    }

    /// What the operating system's error lacks; None when it is not about this node. A port that cannot be had and an
    /// address that this machine does not have look alike: `tcp.rs` tells them apart.
    pub fn lacking(error: &io::Error) -> Option<Self> {
        if let Some(shortage) = error.get_ref().and_then(|inner| inner.downcast_ref::<Shortage>()) {
            return Some(shortage.of);
        }
        match Errno::from_io_error(error)? {
            Errno::MFILE | Errno::NFILE => Some(Self::OpenFiles),
            Errno::ADDRNOTAVAIL => Some(Self::LocalPorts),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            _ => None,
        }
    }
}

/// An attempt could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub of: Resource,
    /// What failed, as a phrase.
    pub error: String,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this node is short of {}: {}", self.of.as_str().replace('_', " "), self.error)
    }
}

impl std::error::Error for Shortage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_machine_lacks_is_a_shortage() {
        let cases = [
            (Errno::MFILE, Some(Resource::OpenFiles)),
            (Errno::NFILE, Some(Resource::OpenFiles)),
            (Errno::ADDRNOTAVAIL, Some(Resource::LocalPorts)),
            (Errno::NOMEM, Some(Resource::Memory)),
            (Errno::NOBUFS, Some(Resource::Memory)),
            (Errno::CONNREFUSED, None),
            (Errno::CONNRESET, None),
            (Errno::HOSTUNREACH, None),
            (Errno::NETUNREACH, None),
            (Errno::TIMEDOUT, None),
            (Errno::NOSPC, None),
            (Errno::DQUOT, None),
            (Errno::ACCESS, None),
            (Errno::NOENT, None),
        ];
        for (errno, expected) in cases {
            assert_eq!(Resource::lacking(&errno.into()), expected, "{errno}");
        }
        assert_eq!(Resource::lacking(&io::Error::other("a sentence")), None);
    }

    #[test]
    fn a_shortage_inside_of_an_error_is_found() {
        let shortage = Shortage { of: Resource::Threads, error: "no thread".to_owned() };
        assert_eq!(Resource::lacking(&io::Error::other(shortage)), Some(Resource::Threads));
    }
}
