//! TLS to Redis: the trusted authorities, the client certificate, and messages for failed handshakes.
//!
//! The server's certificate is always verified. There is no way to switch that off, and no fallback to a plain
//! connection.

use super::in_time::in_time;
use crate::config::{self, ConfigError};
use crate::store_error::StoreError;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, crypto::ring, version,
};

/// What a client needs for TLS handshakes.
pub(super) struct Tls {
    connector: TlsConnector,
}

const A_CERTIFICATE: &str = "a PEM file with certificates, which begins with -----BEGIN CERTIFICATE-----";
const A_KEY: &str = "a PEM file with the private key of redis.cert_file, which begins with -----BEGIN PRIVATE KEY-----";

impl Tls {
    /// Reads the certificates.
    pub(super) fn read(config: &config::Redis) -> Result<Self, ConfigError> {
        // The provider is chosen here. The default of the process belongs to the program that uses this crate.
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .expect("ring offers both")
            .with_root_certificates(roots(config.ca_file.as_deref())?);
        let client = match (&config.cert_file, &config.key_file) {
            (None, None) => client.with_no_client_auth(),
            (Some(cert_file), Some(key_file)) => {
                let chain = certificates("redis.cert_file", cert_file)?;
                let unusable = pem("redis.key_file", key_file, A_KEY);
                let key = PrivateKeyDer::from_pem_slice(&read("redis.key_file", key_file, A_KEY)?)
                    .map_err(|_| unusable("holds no private key".into()))?;
                let client = client.with_client_auth_cert(chain, key);
                client.map_err(|error| unusable(format!("cannot be used: {error}")))?
            }
            (Some(_), None) => return Err(half("redis.cert_file", "redis.key_file")),
            (None, Some(_)) => return Err(half("redis.key_file", "redis.cert_file")),
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(client)) })
    }

    /// Performs the handshake with the server of this name.
    pub(super) async fn greet(
        &self,
        host: &str,
        stream: TcpStream,
        deadline: Instant,
    ) -> Result<TlsStream<TcpStream>, StoreError> {
        let server = ServerName::try_from(host.to_owned())
            .map_err(|_| StoreError::refused(format_args!("{host:?} is not a name that a certificate can contain")))?;
        let hint = "if it does not speak TLS, use the server's tls-port, or redis:// in redis.url";
        let late = format!("the port is open, but the server does not answer the TLS handshake: {hint}");
        let greeted = in_time(deadline, &late, self.connector.connect(server, stream)).await?;
        greeted.map_err(|error| {
            let broken = || StoreError::unavailable(format_args!("the TLS handshake failed ({error}): {hint}"));
            meaning(&error).unwrap_or_else(broken)
        })
    }
}

/// Returns whether a certificate can contain this name.
pub(super) fn can_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// Returns the system's authorities and the configured one.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (_, odd) = roots.add_parsable_certificates(system.certs);
    if odd > 0 || !system.errors.is_empty() {
        tracing::debug!(odd, errors = ?system.errors, "some of the system's certificates cannot be used");
    }
    if let Some(file) = ca_file {
        for certificate in certificates("redis.ca_file", file)? {
            let unusable = |error| pem("redis.ca_file", file, A_CERTIFICATE)(format!("cannot be used: {error}"));
            roots.add(certificate).map_err(unusable)?;
        }
    }
    if roots.is_empty() {
        return Err(ConfigError::Redis {
            key: "redis.ca_file",
            why: "is missing, and this system trusts no authority of its own: name a PEM file of the authority that \
                  signed the Redis server's certificate, or install the system's (Debian: ca-certificates)"
                .into(),
        });
    }
    Ok(roots)
}

fn certificates(key: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let bytes = read(key, file, A_CERTIFICATE)?;
    let unusable = pem(key, file, A_CERTIFICATE);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| unusable(format!("cannot be used: {error}")))?;
    if found.is_empty() { Err(unusable("holds no certificate".into())) } else { Ok(found) }
}

fn read(key: &'static str, file: &Path, expected: &'static str) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|error| pem(key, file, expected)(format!("cannot be read: {error}")))
}

fn pem(key: &'static str, file: &Path, expected: &'static str) -> impl Fn(String) -> ConfigError {
    move |why| ConfigError::Pem { key, file: file.to_owned(), why, expected }
}

fn half(key: &'static str, other: &str) -> ConfigError {
    ConfigError::Redis {
        key,
        why: format!("is set, and {other} is not: a client certificate needs both; without one, leave both out"),
    }
}

/// Returns what a stream's failure means, if it is a failure of TLS.
///
/// The message contains no time, because an error is logged again when its message changes.
pub(super) fn meaning(error: &io::Error) -> Option<StoreError> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(StoreError::refused(match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::InvalidMessage(_) => {
            "this port does not speak TLS: use the server's tls-port, or redis:// in redis.url if the server has none"
                .into()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server asks for a client certificate: set redis.cert_file and redis.key_file".into()
        }
        Error::AlertReceived(alert) => format!(
            "the server ended the TLS handshake ({alert:?}). If it asks for a client certificate, set redis.cert_file \
             and redis.key_file to one that its tls-ca-cert-file has signed"
        ),
        Error::PeerIncompatible(why) => {
            format!(
                "client and server have no TLS version or cipher in common ({why:?}): let the server offer TLS 1.2 \
                 or 1.3"
            )
        }
        other => format!("the TLS connection failed: {other}"),
    }))
}

fn certificate(error: &CertificateError) -> String {
    match error {
        // `BadSignature`: a trusted authority has the same name as the certificate's, and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no trusted authority has signed the server's certificate: set redis.ca_file to the certificate of the \
                                            authority that has"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: renew it, or correct this machine's clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: correct this machine's clock, or replace the certificate".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            // A name is written as `DnsName("example.org")`.
            let names: Vec<_> = presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name)).collect();
            format!(
                "the server's certificate is not for {} but for {}: use such a name in redis.url, or give the server a \
                 certificate for this one",
                expected.to_str(),
                if names.is_empty() { "no name at all".into() } else { names.join(", ") }
            )
        }
        CertificateError::NotValidForName => {
            "the server's certificate is for another name: use that name in redis.url, or replace the certificate"
                .into()
        }
        other => format!("the server's certificate cannot be trusted ({other}): replace the server's certificate"),
    }
}
