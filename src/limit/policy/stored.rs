//! The encoding of a key's state for stores that keep bytes.
//!
//! A value has three parts: a header of four bytes (`hcl` and the kind of the policy), the numbers of the policy under
//! which the state was written, and the numbers of the state. Each number has eight bytes, little-endian. The value
//! contains the policy, so its state can be converted after a change of the configuration, as in the other stores.

use crate::limit::rate::Rate;
use std::collections::VecDeque;
use std::time::Duration;

const MAGIC: &[u8] = b"hcl";

/// A value that is stored as one or more numbers.
pub(crate) trait Stored: Sized {
    fn put(&self, words: &mut Vec<u8>);

    /// Decodes a value at the front of `words`, and removes it from there. Returns `None` if it is invalid.
    fn take(words: &mut &[u8]) -> Option<Self>;
}

/// Encodes a policy of this kind and a key's state.
pub(super) fn write(kind: u8, policy: &impl Stored, state: &impl Stored) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(MAGIC);
    bytes.push(kind);
    policy.put(&mut bytes);
    state.put(&mut bytes);
    bytes
}

/// Splits a value into its kind and its numbers; `None` if the header is missing.
pub(super) fn kind(bytes: &[u8]) -> Option<(u8, &[u8])> {
    bytes.strip_prefix(MAGIC)?.split_first().map(|(kind, words)| (*kind, words))
}

/// Decodes a policy and a key's state; `None` if a number is invalid, missing or left over.
pub(super) fn read<P: Stored, S: Stored>(mut words: &[u8]) -> Option<(P, S)> {
    let both = (P::take(&mut words)?, S::take(&mut words)?);
    words.is_empty().then_some(both)
}

/// Implements `Stored` for a struct, field by field.
macro_rules! stored {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl crate::limit::policy::stored::Stored for $type {
            fn put(&self, words: &mut Vec<u8>) {
                $(crate::limit::policy::stored::Stored::put(&self.$field, words);)*
            }

            fn take(words: &mut &[u8]) -> Option<Self> {
                $(let $field = crate::limit::policy::stored::Stored::take(words)?;)*
                Some(Self { $($field),* })
            }
        }
    };
}
pub(crate) use stored;

impl Stored for u64 {
    fn put(&self, words: &mut Vec<u8>) {
        words.extend_from_slice(&self.to_le_bytes());
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        let (word, rest) = words.split_first_chunk()?;
        *words = rest;
        Some(Self::from_le_bytes(*word))
    }
}

impl Stored for u32 {
    fn put(&self, words: &mut Vec<u8>) {
        u64::from(*self).put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        u64::take(words)?.try_into().ok()
    }
}

impl Stored for i64 {
    fn put(&self, words: &mut Vec<u8>) {
        self.cast_unsigned().put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        u64::take(words).map(u64::cast_signed)
    }
}

impl Stored for f64 {
    fn put(&self, words: &mut Vec<u8>) {
        self.to_bits().put(words);
    }

    /// Decodes a number, and refuses infinities and NaN, which no state contains.
    fn take(words: &mut &[u8]) -> Option<Self> {
        u64::take(words).map(Self::from_bits).filter(|number| number.is_finite())
    }
}

impl Stored for bool {
    fn put(&self, words: &mut Vec<u8>) {
        u64::from(*self).put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        match u64::take(words)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Stored for Duration {
    fn put(&self, words: &mut Vec<u8>) {
        self.as_secs().put(words);
        self.subsec_nanos().put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        let (seconds, nanos) = (u64::take(words)?, u32::take(words)?);
        (nanos < 1_000_000_000).then(|| Self::new(seconds, nanos))
    }
}

impl<T: Stored> Stored for Option<T> {
    fn put(&self, words: &mut Vec<u8>) {
        self.is_some().put(words);
        if let Some(value) = self {
            value.put(words);
        }
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        if bool::take(words)? { T::take(words).map(Some) } else { Some(None) }
    }
}

/// Times, in ascending order.
impl Stored for VecDeque<u64> {
    fn put(&self, words: &mut Vec<u8>) {
        (self.len() as u64).put(words);
        self.iter().for_each(|time| time.put(words));
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        let count = usize::try_from(u64::take(words)?).ok().filter(|count| *count <= words.len() / size_of::<u64>())?;
        let times = (0..count).map(|_| u64::take(words)).collect::<Option<Self>>()?;
        times.iter().is_sorted().then_some(times)
    }
}

impl<T: Stored> Stored for Box<T> {
    fn put(&self, words: &mut Vec<u8>) {
        self.as_ref().put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        T::take(words).map(Self::new)
    }
}

impl Stored for Rate {
    fn put(&self, words: &mut Vec<u8>) {
        self.nanos().put(words);
    }

    fn take(words: &mut &[u8]) -> Option<Self> {
        <Option<u64> as Stored>::take(words).map(Self::of_nanos)
    }
}
