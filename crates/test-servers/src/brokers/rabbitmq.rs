//! RabbitMQ, with a port mapper for Erlang nodes that only it uses.

use std::fs;
use std::path::{Path, PathBuf};

use super::{
    Broker, BrokerKind, BrokerListeners, DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, Program, USER, write,
};
use crate::ground::Folder;
use crate::port;
use crate::process::{command, run};

const PORT_MAPPER: &str = "/usr/bin/epmd";

pub(super) fn installed() -> bool {
    scripts().is_some()
}

/// Not those in the PATH: they switch to a user of the system.
fn scripts() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/rabbitmq/lib").ok()?.flatten();
    let mut scripts = versions.map(|version| version.path().join("sbin"));
    scripts.find(|scripts| scripts.join("rabbitmq-server").exists())
}

pub(super) fn prepare(folder: Folder, settings: &str) -> Result<Broker, String> {
    let path = folder.path();
    let listeners = BrokerListeners::new(path);
    write(path, "rabbitmq.conf", &configuration(path, &listeners, settings))?;
    write(path, "definitions.json", &definitions())?;
    write(path, "enabled_plugins", "[].\n")?;
    let scripts = scripts().ok_or("RabbitMQ is not installed")?;
    let mapper = port::free();
    let mut server = environment(path, mapper);
    server.push(format!("RABBITMQ_DIST_PORT={}", port::free()));
    server.push(scripts.join("rabbitmq-server").to_string_lossy().into_owned());
    server.extend(["-eval".to_owned(), demanding_listener(listeners.mutual_tls)]);
    let mapper_command = [PORT_MAPPER, "-address", "127.0.0.1", "-port", &mapper.to_string()];
    let programs = vec![
        Program { command: mapper_command.map(str::to_owned).into(), port: mapper },
        Program { command: server, port: listeners.tls },
    ];
    Ok(Broker::new(BrokerKind::RabbitMq, listeners, programs, folder))
}

impl Broker {
    /// `rabbitmqctl …` and what it printed.
    pub fn rabbitmqctl(&self, arguments: &[&str]) -> Result<String, String> {
        assert_eq!(self.kind, BrokerKind::RabbitMq);
        let [mapper, _] = &self.programs[..] else { unreachable!("RabbitMQ has two processes") };
        let path = self.folder.path();
        let script = scripts().ok_or("RabbitMQ is not installed")?.join("rabbitmqctl");
        run(command("env").args(environment(path, mapper.port)).arg(script).args(arguments), path)
    }
}

/// As `env` takes it.
fn environment(path: &Path, mapper: u16) -> Vec<String> {
    let folder = path.display();
    let variables = [
        format!("HOME={folder}"),
        "LANG=C.UTF-8".to_owned(),
        format!("ERL_EPMD_PORT={mapper}"),
        "ERL_EPMD_ADDRESS=127.0.0.1".to_owned(),
        // Erlang would start a port mapper where none runs, and leave it behind.
        "ERL_FLAGS=-start_epmd false".to_owned(),
        "RABBITMQ_NODENAME=postrider@localhost".to_owned(),
        format!("RABBITMQ_MNESIA_BASE={folder}/data"),
        format!("RABBITMQ_LOG_BASE={folder}/logs"),
        format!("RABBITMQ_CONFIG_FILE={folder}/rabbitmq.conf"),
        format!("RABBITMQ_ENABLED_PLUGINS_FILE={folder}/enabled_plugins"),
        format!("RABBITMQ_PID_FILE={folder}/pid"),
        "RABBITMQ_CONF_ENV_FILE=/dev/null".to_owned(),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        // The script is replaced by the server then, instead of waiting for it.
        "RUNNING_UNDER_SYSTEMD=true".to_owned(),
    ];
    variables.into()
}

fn configuration(path: &Path, listeners: &BrokerListeners, settings: &str) -> String {
    let BrokerListeners { plain, tls, .. } = listeners;
    let folder = path.display();
    format!(
        "listeners.tcp.1 = 127.0.0.1:{plain}
listeners.ssl.1 = 127.0.0.1:{tls}
ssl_options.cacertfile = {folder}/ca.crt
ssl_options.certfile = {folder}/server.crt
ssl_options.keyfile = {folder}/server.key
ssl_options.verify = verify_none
ssl_options.fail_if_no_peer_cert = false
loopback_users = none
disk_free_limit.absolute = 50MB
max_message_size = {MESSAGE_BYTES_MAX}
load_definitions = {folder}/definitions.json
{settings}
"
    )
}

/// The configuration has one set of TLS options for all listeners, hence Erlang.
fn demanding_listener(port: u16) -> String {
    format!(
        "rabbit:await_startup(), {{ok, Usual}} = application:get_env(rabbit, ssl_options), \
         Demanding = [{{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}], \
         rabbit_networking:start_ssl_listener({{\"127.0.0.1\", {port}}}, \
         lists:ukeymerge(1, lists:sort(Demanding), lists:ukeysort(1, Usual)), 10)."
    )
}

/// Without users here it would create only guest.
fn definitions() -> String {
    let user =
        |name: &str, password: &str| format!(r#"{{"name":"{name}","password":"{password}","tags":""}}"#);
    let permission = |name: &str, names: &str| {
        format!(r#"{{"user":"{name}","vhost":"/","configure":"{names}","write":"{names}","read":"{names}"}}"#)
    };
    let users = [user("guest", "guest"), user(USER, PASSWORD), user(DENIED_USER, PASSWORD)].join(",");
    let permissions =
        [permission("guest", ".*"), permission(USER, ".*"), permission(DENIED_USER, "^$")].join(",");
    format!(r#"{{"users":[{users}],"vhosts":[{{"name":"/"}}],"permissions":[{permissions}]}}"#)
}
