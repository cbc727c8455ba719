//! Brokers that the tests of a run share.

use std::sync::{Mutex, OnceLock};

use super::{Broker, BrokerKind, BrokerListeners};
use crate::process::wait_until;

impl BrokerKind {
    /// Names the broker that a whole run shares. Its value is what `Display` of [`BrokerListeners`] writes.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Mosquitto => "POSTRIDER_TEST_MOSQUITTO",
            Self::Redis => "POSTRIDER_TEST_REDIS",
            Self::Nats => "POSTRIDER_TEST_NATS",
            Self::RabbitMq => "POSTRIDER_TEST_RABBITMQ",
            Self::Kafka => "POSTRIDER_TEST_KAFKA",
        }
    }

    /// The run's broker, or else one that this process starts. None, and a line of output, where it is not
    /// installed. Waits while the run's broker still starts.
    pub fn shared(self) -> Option<&'static BrokerListeners> {
        static SHARED: [OnceLock<Option<BrokerListeners>>; 5] = [const { OnceLock::new() }; 5];
        SHARED[self as usize].get_or_init(|| self.find_shared()).as_ref()
    }

    fn find_shared(self) -> Option<BrokerListeners> {
        /// Until the process ends.
        static OWN: Mutex<Vec<Broker>> = Mutex::new(Vec::new());
        let Ok(text) = std::env::var(self.variable()) else {
            let broker = self.start()?;
            let listeners = broker.listeners().clone();
            OWN.lock().expect("pushing does not panic").push(broker);
            return Some(listeners);
        };
        let variable = self.variable();
        let listeners =
            BrokerListeners::parse(&text).unwrap_or_else(|| panic!("{variable} is not understood: {text}"));
        let ready = self.ready(&listeners);
        assert!(wait_until(|| ready.now()), "the {} of this run did not start", self.name());
        Some(listeners)
    }
}
