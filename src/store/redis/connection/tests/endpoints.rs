//! Clients with TLS files.

use std::path::{Path, PathBuf};

use redis::ConnectionAddr;

use super::*;

/// A certificate with its key, and another key.
fn files(directory: &Path) -> [PathBuf; 3] {
    let [own, other] = ["own", "other"].map(|_| rcgen::KeyPair::generate().unwrap());
    let certificate = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&own).unwrap();
    [("a.pem", certificate.pem()), ("a.key", own.serialize_pem()), ("b.key", other.serialize_pem())].map(
        |(name, pem)| {
            let file = directory.join(name);
            std::fs::write(&file, pem).unwrap();
            file
        },
    )
}

fn made(tls: TlsFiles) -> Result<Client, String> {
    client(&RedisEndpoint { url: "rediss://a:1".into(), username: None, password: None, tls })
}

#[test]
fn tls_files_are_used_and_those_that_cannot_be_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key, other_key] = files(directory.path());
    let own = |key: &Path| TlsFiles {
        cert_file: Some(certificate.clone()),
        key_file: Some(key.to_owned()),
        ..TlsFiles::default()
    };
    let trusting = |file: &Path| TlsFiles { ca_file: Some(file.to_owned()), ..TlsFiles::default() };
    for (tls, has_files) in [(TlsFiles::default(), false), (own(&key), true), (trusting(&certificate), true)] {
        let client = made(tls.clone()).unwrap();
        let ConnectionAddr::TcpTls { tls_params, .. } = client.get_connection_info().addr() else { panic!("TLS") };
        assert_eq!(tls_params.is_some(), has_files, "{tls:?}");
    }
    let error = made(own(&other_key)).unwrap_err();
    assert!(error.starts_with(&format!("{}: ", certificate.display())), "{error}");
    let error = made(trusting(&key)).unwrap_err();
    assert_eq!(error, format!("{}: no certificate in it", key.display()));
    let absent = directory.path().join("absent");
    let error = made(trusting(&absent)).unwrap_err();
    assert!(error.starts_with(&format!("{}: ", absent.display())), "{error}");
}
