//! Deserializes values that may come from a file or from the environment.

use serde::de::Unexpected;
use serde::{Deserialize, Deserializer};

/// Deserializes one of a few words; an error lists them all.
pub(super) fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let word = String::deserialize(deserializer)?;
    T::deserialize(serde::de::value::StringDeserializer::<D::Error>::new(word))
}

/// Deserializes a whole number, also from text, because environment variables are text. A fraction is an error.
pub(super) fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    struct Whole;
    impl serde::de::Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
            u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
            text.trim().replace('_', "").parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    let number = deserializer.deserialize_any(Whole)?;
    T::try_from(number).map_err(|_| serde::de::Error::invalid_value(Unexpected::Unsigned(number), &Whole))
}

/// Deserializes a whole number like [`whole`], for a key that may be missing.
pub(super) fn whole_if_any<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    whole(deserializer).map(Some)
}

/// A time, or `"auto"`, which is `None` and stands for a time that headcount chooses.
pub(super) mod time_or_auto {
    use serde::de::value::StringDeserializer;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    const AUTO: &str = "auto";

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.trim() == AUTO {
            return Ok(None);
        }
        humantime_serde::deserialize(StringDeserializer::<D::Error>::new(text)).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            None => serializer.serialize_str(AUTO),
            Some(time) => humantime_serde::serialize(time, serializer),
        }
    }
}
