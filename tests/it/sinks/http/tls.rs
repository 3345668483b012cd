use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use punctual::{
    connector::http::HttpSink,
    sink::{Outcome, Sink},
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::AsyncWriteExt,
    sync::{Notify, Semaphore},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::config;
pub use crate::support::Authority;
use crate::support::{RawServer, delivery, read_request, send, send_one};

pub const TIMEOUT: Duration = Duration::from_secs(5);
/// A timeout of which a server takes a large part.
const SLOW: Duration = Duration::from_secs(2);

impl Authority {
    /// A server's side of TLS; `client` asks for a certificate of this authority.
    pub fn acceptor(&self, protocols: &[&[u8]], client: bool) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = if client {
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![CertificateDer::from_pem_file(self.file("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.file("server.key")).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A server that confirms each request over HTTP/1.1.
    fn server(&self, client: bool) -> RawServer {
        let acceptor = self.acceptor(&[b"http/1.1"], client);
        RawServer::start(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                while read_request(&mut stream).await.is_some() {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
            }
        })
    }

    pub fn sink(&self, host: &str, port: u16, client: bool) -> HttpSink {
        let mut config = config(format!("https://{host}:{port}/due"), TIMEOUT);
        config.tls.ca_file = Some(self.file("ca.pem"));
        if client {
            config.tls.cert_file = Some(self.file("client.pem"));
            config.tls.key_file = Some(self.file("client.key"));
        }
        HttpSink::new(&config).unwrap()
    }
}

#[tokio::test]
async fn a_certificate_of_the_named_authority_is_trusted() {
    let authority = Authority::new();
    let server = authority.server(false);
    let sink = authority.sink("localhost", server.port(), false);
    assert_eq!(sink.check().await, Ok(()));
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
}

#[tokio::test]
async fn after_a_handshake_of_most_of_the_timeout_the_connection_is_kept_for_the_next_message() {
    let authority = Authority::new();
    let (acceptor, requests) = (authority.acceptor(&[b"http/1.1"], false), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&requests);
    let server = RawServer::start(move |stream| {
        let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
        async move {
            sleep(SLOW.mul_f64(0.7)).await;
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            while read_request(&mut stream).await.is_some() {
                seen.fetch_add(1, Ordering::SeqCst);
                // Longer than the rest of the timeout after the handshake.
                sleep(SLOW.mul_f64(0.4)).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
        }
    });
    let mut config = config(format!("https://localhost:{}/due", server.port()), SLOW);
    config.tls.ca_file = Some(authority.file("ca.pem"));
    let sink = HttpSink::new(&config).unwrap();
    let outcome = send_one(&sink).await;
    assert!(matches!(outcome, Outcome::Unsent { .. }), "{outcome:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    assert_eq!((requests.load(Ordering::SeqCst), server.connections()), (1, 1));
}

#[tokio::test]
async fn another_authority_or_another_name_is_unavailable() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.server(false);
    for sink in [other.sink("localhost", server.port(), false), authority.sink("127.0.0.1", server.port(), false)] {
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        assert!(outcome.error().unwrap().contains("certificate"), "{outcome:?}");
        assert!(sink.check().await.unwrap_err().contains("certificate"));
    }
}

#[tokio::test]
async fn plain_text_where_tls_was_expected_is_unavailable() {
    let authority = Authority::new();
    let server = RawServer::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    });
    let sink = authority.sink("localhost", server.port(), false);
    let outcome = send_one(&sink).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    assert!(sink.check().await.is_err());
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_a_server_that_asks() {
    let authority = Authority::new();
    let server = authority.server(true);
    assert_eq!(send_one(&authority.sink("localhost", server.port(), true)).await, Outcome::Confirmed);
    let outcome = send_one(&authority.sink("localhost", server.port(), false)).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_speaks_http_2_gets_a_whole_batch_over_few_connections() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&[b"h2"], false);
    let server = RawServer::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.expect("TLS");
            let confirm = service_fn(|request: Request<Incoming>| async move {
                let empty: Response<String> = Response::default();
                assert_eq!(request.version(), hyper::Version::HTTP_2);
                assert_eq!(request.headers()["punctual-route"], "orders");
                Ok::<_, hyper::Error>(empty)
            });
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), confirm).await;
        }
    });
    let sink = authority.sink("localhost", server.port(), false);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    let batch = (0..1000).map(|n| delivery(&format!("m{n}"), Bytes::from_static(b"x"))).collect();
    assert!(send(&sink, batch).await.iter().all(|outcome| *outcome == Outcome::Confirmed));
    assert_eq!(server.connections(), 1);
}

/// Ends each connection, as servers do after a number of requests: those under way are answered, the others refused.
#[tokio::test]
async fn an_http_2_server_may_end_its_connections_without_a_loss() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&[b"h2"], false);
    let server = RawServer::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.expect("TLS");
            let left = Arc::new(Semaphore::new(100));
            let (counted, ended) = (Arc::clone(&left), Arc::new(Notify::new()));
            let end = Arc::clone(&ended);
            let confirm = service_fn(move |_: Request<Incoming>| {
                match counted.try_acquire() {
                    Ok(permit) => permit.forget(),
                    Err(_) => end.notify_one(),
                }
                async { Ok::<_, hyper::Error>(Response::<String>::default()) }
            });
            let builder = http2::Builder::new(TokioExecutor::new());
            let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), confirm));
            tokio::select! {
                _ = serving.as_mut() => {}
                () = ended.notified() => {
                    serving.as_mut().graceful_shutdown();
                    let _ = serving.await;
                }
            }
        }
    });
    let sink = authority.sink("localhost", server.port(), false);
    for _ in 0..5 {
        let batch = (0..200).map(|n| delivery(&format!("m{n}"), Bytes::from_static(b"x"))).collect();
        for outcome in send(&sink, batch).await {
            assert_eq!(outcome, Outcome::Confirmed);
        }
    }
    assert!(server.connections() > 1, "{}", server.connections());
}

#[tokio::test]
async fn a_first_batch_opens_one_http_2_connection() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&[b"h2"], false);
    let server = RawServer::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.expect("TLS");
            let confirm = service_fn(|_| async { Ok::<_, hyper::Error>(Response::<String>::default()) });
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), confirm).await;
        }
    });
    let sink = authority.sink("localhost", server.port(), false);
    let batch = (0..300).map(|n| delivery(&format!("m{n}"), Bytes::from_static(b"x"))).collect();
    assert!(send(&sink, batch).await.iter().all(|outcome| *outcome == Outcome::Confirmed));
    assert_eq!(server.connections(), 1);
}
