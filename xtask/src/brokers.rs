//! The brokers that a run of tests shares. They start in the background; tests wait for those that they need.

use std::fs;
use std::thread::{self, JoinHandle};

use test_servers::brokers::{kafka, nats};
use test_servers::{Broker, BrokerKind};

use crate::command::run;
use crate::{install, prepare};

#[derive(Default)]
pub(crate) struct Brokers {
    environment: Vec<(&'static str, String)>,
    starting: Vec<JoinHandle<Broker>>,
}

impl Brokers {
    pub(crate) fn start() -> Result<Self, String> {
        let mut brokers = Self::default();
        for kind in BrokerKind::ALL.into_iter().filter(|kind| kind.installed()) {
            let mut broker = kind.prepare("")?;
            brokers.environment.push((kind.variable(), broker.listeners().to_string()));
            brokers.starting.push(thread::spawn(move || {
                // Tests that need it fail after a while.
                broker.start_again().unwrap_or_else(|error| eprintln!("xtask: {error}"));
                broker
            }));
        }
        Ok(brokers)
    }

    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        self.environment.clone()
    }
}

/// Brokers that are still starting end with this process.
impl Drop for Brokers {
    fn drop(&mut self) {
        for broker in self.starting.drain(..).filter(JoinHandle::is_finished) {
            drop(broker.join());
        }
    }
}

/// What could not be installed, and why.
pub(crate) fn missing() -> Vec<String> {
    let nats = [(nats::RELEASE, nats::folder()), (nats::CLIENT, nats::client_folder())];
    let nats = nats.iter().filter_map(|(release, folder)| install::from_pypi(release, folder));
    prepare::brokers().into_iter().chain(nats).chain(missing_kafka()).collect()
}

fn missing_kafka() -> Option<String> {
    let release = format!("Kafka {}", kafka::RELEASE);
    install::once(&release, &kafka::folder(), |workshop| {
        let project = workshop.join("pom.xml");
        fs::write(&project, maven_project()).map_err(|error| error.to_string())?;
        let (project, output) =
            (project.to_string_lossy(), format!("-DoutputDirectory={}", workshop.display()));
        run("mvn", &["-q", "-B", "-f", &project, &output, "dependency:copy-dependencies"], &[])?;
        Ok(workshop.to_owned())
    })
}

/// The server, its command-line tools, and a logger that writes to standard error.
fn maven_project() -> String {
    let group = "org.apache.kafka";
    let needed = [
        (group, "kafka_2.13", kafka::RELEASE),
        (group, "kafka-tools", kafka::RELEASE),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ];
    let needed = needed.map(|(group, artifact, version)| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>\n"
        )
    });
    let needed = needed.concat();
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">
<modelVersion>4.0.0</modelVersion>
<groupId>postrider</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
<dependencies>
{needed}</dependencies>
</project>
"
    )
}
