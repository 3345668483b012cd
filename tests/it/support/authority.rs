use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tempfile::TempDir;

/// A private certificate authority, and what it has signed, as PEM files: `ca.pem`, `server.pem` and `.key` for
/// `localhost`, `address.pem` and `.key` for `127.0.0.1`, `both.pem` and `.key` for either, `client.pem` and `.key`.
pub struct Authority {
    directory: PathBuf,
    /// Removes the directory when it is dropped.
    temporary: Option<TempDir>,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let mut authority = Self::within(temporary.path());
        authority.temporary = Some(temporary);
        authority
    }

    /// With its files in `directory`, where they stay.
    pub fn within(directory: &Path) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        // Some servers regard a certificate as self-signed if it has the same names as its issuer.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { directory: directory.to_owned(), temporary: None, issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority.sign("server", &["localhost"], ExtendedKeyUsagePurpose::ServerAuth);
        authority.sign("address", &["127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth);
        authority.sign("both", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth);
        authority.sign("client", &["punctual"], ExtendedKeyUsagePurpose::ClientAuth);
        authority
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn sign(&self, file: &str, names: &[&str], usage: ExtendedKeyUsagePurpose) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, names[0]);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn write(&self, file: &str, pem: &str) {
        std::fs::write(self.file(file), pem).unwrap();
    }
}
