//! The claims that the configuration asks for, and which of them a verified token has.

/// A claim of a JSON Web Token (RFC 7519 §4) with a value.
#[cfg(feature = "jwt")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) name: String,
    /// The value, or one of a list of values. Numbers and truth values count as they are written.
    pub(crate) value: String,
}

/// Which of the claims a token has, by their places in the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClaimSet(u16);

impl ClaimSet {
    pub(crate) fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

#[cfg(any(feature = "jwt", test))]
impl FromIterator<usize> for ClaimSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        Self(places.into_iter().fold(0, |set, place| set | 1 << place))
    }
}
