//! mosquitto, a broker for MQTT.

use std::path::Path;

use super::{
    Broker, BrokerKind, BrokerListeners, DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, Program, USER, write,
};
use crate::ground::Folder;
use crate::process::{command, run};

/// Out of the PATH of ordinary users.
const PROGRAM: &str = "/usr/sbin/mosquitto";

pub(super) fn installed() -> bool {
    Path::new(PROGRAM).exists()
}

pub(super) fn prepare(folder: Folder, settings: &str) -> Result<Broker, String> {
    let path = folder.path();
    let listeners = BrokerListeners::new(path);
    write(path, "mosquitto.conf", &configuration(&listeners, settings))?;
    // The lines before the first user are about anonymous clients. The other user has no lines.
    write(path, "access", &format!("topic readwrite #\nuser {USER}\ntopic readwrite #\n"))?;
    for (create, user) in [(&["-c"][..], USER), (&[], DENIED_USER)] {
        let mut passwords = command("mosquitto_passwd");
        run(passwords.args(create).args(["-b", "passwords", user, PASSWORD]), path)?;
    }
    let command = [PROGRAM, "-c", "mosquitto.conf"].map(str::to_owned).into();
    let port = listeners.mutual_tls;
    Ok(Broker::new(BrokerKind::Mosquitto, listeners, vec![Program { command, port }], folder))
}

/// Every change is saved within a second, because mosquitto writes no log: a kill loses what was not saved. So that
/// subscribers have what publishers were told is there, they get all of it at once, or later from an endless queue.
fn configuration(listeners: &BrokerListeners, settings: &str) -> String {
    let BrokerListeners { plain, tls, mutual_tls, .. } = listeners;
    let access = "allow_anonymous true\npassword_file passwords\nacl_file access";
    let certificate = "cafile ca.crt\ncertfile server.crt\nkeyfile server.key";
    format!(
        "per_listener_settings true
persistence true
autosave_on_changes true
autosave_interval 1
message_size_limit {MESSAGE_BYTES_MAX}
max_inflight_messages 0
max_queued_messages 0
{settings}
listener {plain} 127.0.0.1
{access}
listener {tls} 127.0.0.1
{access}
{certificate}
listener {mutual_tls} 127.0.0.1
{access}
{certificate}
require_certificate true
"
    )
}
