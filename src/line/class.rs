//! The classes of newcomers.

/// The most classes that can be configured. One more is of those who are in no other.
pub(crate) const MOST_CLASSES: usize = 8;

/// A class, by its place among all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(pub(crate) u8);

impl Class {
    /// The class of those who are in no other.
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}
