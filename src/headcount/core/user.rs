//! The user of a request.

use crate::fingerprint::{Fingerprint, FingerprintKey};

/// The bytes that identify a user (a token, or a verified name) and their fingerprint, which is computed once per
/// request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User<'t> {
    token: &'t [u8],
    fingerprint: Fingerprint,
}

impl<'t> User<'t> {
    pub(crate) fn new(token: &'t [u8], key: &FingerprintKey) -> Self {
        Self { token, fingerprint: key.fingerprint(token) }
    }

    /// Returns the token or name.
    pub(crate) fn token(&self) -> &'t [u8] {
        self.token
    }

    /// Returns the fingerprint under this server's key.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns whether the token is empty or only white space, and so names nobody.
    pub(crate) fn is_blank(&self) -> bool {
        self.token.iter().all(u8::is_ascii_whitespace)
    }
}
