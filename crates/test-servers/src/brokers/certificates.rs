//! A private authority, and the certificates of a broker and of its clients, made by the program `openssl`.

use std::path::Path;

use crate::process::{command, run};

pub(super) const AUTHORITY: &str = "ca.crt";
pub(super) const SERVER: &str = "server.crt";
pub(super) const SERVER_KEY: &str = "server.key";
pub(super) const CLIENT: &str = "client.crt";
pub(super) const CLIENT_KEY: &str = "client.key";

const PROGRAM: &str = "/usr/bin/openssl";
const AUTHORITY_KEY: &str = "ca.key";

pub(super) fn can_be_made() -> bool {
    Path::new(PROGRAM).exists()
}

pub(super) fn write(folder: &Path) -> Result<(), String> {
    certify(folder, "authority", AUTHORITY, AUTHORITY_KEY, &["-addext", "keyUsage=critical,keyCertSign"])?;
    let signed = ["-CA", AUTHORITY, "-CAkey", AUTHORITY_KEY, "-addext", "basicConstraints=critical,CA:FALSE"];
    let place = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
    certify(folder, "localhost", SERVER, SERVER_KEY, &[&signed[..], &place].concat())?;
    certify(folder, super::USER, CLIENT, CLIENT_KEY, &signed)
}

fn certify(folder: &Path, name: &str, certificate: &str, key: &str, further: &[&str]) -> Result<(), String> {
    let mut openssl = command(PROGRAM);
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    openssl.args(["-days", "30", "-subj", &format!("/CN={name}"), "-out", certificate, "-keyout", key]);
    run(openssl.args(further), folder).map(drop)
}
