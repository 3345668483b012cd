//! TLS of clients, with the system's root certificates or configured ones, and TLS of the API. Uses rustls with ring.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, ServerConfig,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The files of a client. All are PEM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// PEM: certificates of the authorities to trust. Unless set: those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM: certificate of the client, followed by intermediate certificates. Needs `tls.key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM: private key of the client certificate. Needs `tls.cert_file`.
    pub key_file: Option<PathBuf>,
}

impl TlsFiles {
    /// Whether no file is set.
    pub fn is_empty(&self) -> bool {
        self.ca_file.is_none() && self.cert_file.is_none() && self.key_file.is_none()
    }
}

/// The TLS settings of a client. Without a `ca_file` the system's root certificates are trusted.
///
/// # Errors
/// The unusable file and the reason.
pub fn client_config(files: &TlsFiles) -> Result<ClientConfig, String> {
    let roots = match &files.ca_file {
        Some(file) => own_roots(file)?,
        None => system_roots(),
    };
    let builder = trusting(roots);
    match (&files.cert_file, &files.key_file) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| format!("{}: {error}", cert.display())),
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err("`cert_file` and `key_file` belong together".into()),
    }
}

/// The TLS settings of an HTTP/1.1 server without client certificates. Both files are PEM. The chain begins with the
/// server's own certificate.
///
/// # Errors
/// The unusable file and the reason.
pub fn server_config(cert_file: &Path, key_file: &Path) -> Result<ServerConfig, String> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(certificates(cert_file)?, private_key(key_file)?)
        .map_err(|error| format!("{}: {error}", cert_file.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Checks that both files can be read, and that the key belongs to the certificate.
///
/// # Errors
/// The unusable file and the reason.
pub fn check_pair(cert_file: &Path, key_file: &Path) -> Result<(), String> {
    server_config(cert_file, key_file).map(drop)
}

/// Settings that trust no certificate, for a client that requires TLS settings but does not use them.
pub fn unused() -> ClientConfig {
    trusting(RootCertStore::empty()).with_no_client_auth()
}

fn trusting(roots: RootCertStore) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has TLS 1.2 and 1.3")
        .with_root_certificates(roots)
}

fn own_roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(roots)
}

/// The system's root certificates. If there are none, every connection fails with an error about its certificate.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        tracing::warn!("no root certificates on this system: install ca-certificates or set `tls.ca_file`");
    }
    roots
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>();
    match read() {
        Ok(chain) if chain.is_empty() => Err(format!("{}: no certificate in it", file.display())),
        Ok(chain) => Ok(chain),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}
