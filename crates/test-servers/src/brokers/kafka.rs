//! Kafka, one node that is broker and controller.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    Broker, BrokerKind, BrokerListeners, DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, Program, USER, write,
};
use crate::ground::{Folder, ground};
use crate::port;
use crate::process::command;

/// Of Apache Kafka's jars, which `cargo xtask` gets by Maven.
pub const RELEASE: &str = "4.1.1";

pub fn folder() -> PathBuf {
    ground().join(format!("binaries/kafka-{RELEASE}"))
}

/// One of its programs, by its Java class.
pub fn tool(class: &str) -> Command {
    let mut java = command("java");
    java.args(QUICKLY).args(["-cp", &class_path(), class]);
    java
}

/// A small process that starts quickly matters more than its speed later.
const QUICKLY: [&str; 4] = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"];

/// A request for API versions: length, kind, version, number, no client name.
pub(super) const API_VERSIONS: &[u8] = &[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];

pub(super) fn installed() -> bool {
    folder().exists()
}

pub(super) fn prepare(folder: Folder, settings: &str) -> Result<Broker, String> {
    let path = folder.path();
    let listeners =
        BrokerListeners { password: port::free(), password_tls: port::free(), ..BrokerListeners::new(path) };
    write(path, "server.properties", &configuration(path, &listeners, settings))?;
    write(path, "server.pem", &server_pem(path).map_err(|error| error.to_string())?)?;
    let command = ["sh", "-c", &start_script()].map(str::to_owned).into();
    let port = listeners.plain;
    Ok(Broker::new(BrokerKind::Kafka, listeners, vec![Program { command, port }], folder))
}

/// Kafka wants key and certificate in one file.
fn server_pem(path: &Path) -> std::io::Result<String> {
    Ok(fs::read_to_string(path.join("server.key"))? + &fs::read_to_string(path.join("server.crt"))?)
}

/// The first start formats the data folder, with the users in it.
fn start_script() -> String {
    let users = [USER, DENIED_USER].into_iter().flat_map(|user| {
        ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            .map(|mechanism| format!("--add-scram '{mechanism}=[name={user},password={PASSWORD}]'"))
    });
    let users = users.collect::<Vec<_>>().join(" ");
    let java = format!("java {} -cp '{}'", QUICKLY.join(" "), class_path());
    format!(
        "test -e data/meta.properties || {java} kafka.tools.StorageTool format \
         --cluster-id postriderAAAAAAAAAAAAA --config server.properties {users} || exit 1
         exec {java} kafka.Kafka server.properties"
    )
}

fn class_path() -> String {
    format!("{}/*", folder().display())
}

fn configuration(path: &Path, listeners: &BrokerListeners, settings: &str) -> String {
    let BrokerListeners { plain, tls, mutual_tls, password, password_tls, .. } = listeners;
    let controller = port::free();
    let folder = path.display();
    let plain_login = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\" user_{DENIED_USER}=\"{PASSWORD}\";"
    );
    let scram_login = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let logins = ["sasl_plaintext", "sasl_ssl"].map(|listener| {
        let login = format!("listener.name.{listener}");
        format!(
            "{login}.plain.sasl.jaas.config={plain_login}
{login}.scram-sha-256.sasl.jaas.config={scram_login}
{login}.scram-sha-512.sasl.jaas.config={scram_login}
"
        )
    });
    let logins = logins.concat();
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},MUTUAL://127.0.0.1:{mutual_tls},\
SASL_PLAINTEXT://127.0.0.1:{password},SASL_SSL://127.0.0.1:{password_tls},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/data
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.crt
listener.name.mutual.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
{logins}authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{USER};User:CN={USER}
message.max.bytes={MESSAGE_BYTES_MAX}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
{settings}
"
    )
}
