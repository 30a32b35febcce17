//! The designs that are compared.

use crate::scale::Scale;
use headcount::internals::{Beats, Protocol};
use headcount::{Builder, Refill};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Strategy {
    #[serde(rename = "headcount")]
    Headcount,
    #[serde(rename = "v0")]
    V0,
    #[serde(rename = "v1")]
    V1,
    #[serde(rename = "v1.1")]
    V1_1,
}

impl Strategy {
    pub const ALL: [Self; 4] = [Self::Headcount, Self::V0, Self::V1, Self::V1_1];

    pub fn name(self) -> &'static str {
        match self {
            Self::Headcount => "headcount",
            Self::V0 => "v0",
            Self::V1 => "v1",
            Self::V1_1 => "v1.1",
        }
    }

    /// Returns a short description.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Headcount => "filters, shared once a round",
            Self::V0 => "the talk's two hashes, a call per request",
            Self::V1 => "filters, retry on conflict",
            Self::V1_1 => "filters, skip on conflict",
        }
    }

    /// How its servers exchange news, on this scale; `None` if they ask Redis about each request.
    pub fn protocol(self, write_delay: Duration, scale: Scale) -> Option<Protocol> {
        let protocol = match self {
            Self::Headcount => {
                let lazy_bytes_per_second = Protocol::HEADCOUNT.lazy_bytes_per_second as f64 * scale.speed();
                Protocol {
                    beats: Beats::Every(scale.beat()),
                    lazy_bytes_per_second: lazy_bytes_per_second as u64,
                    ..Protocol::HEADCOUNT
                }
            }
            Self::V0 => return None,
            Self::V1 => Protocol::V1,
            Self::V1_1 => Protocol::V1_1,
        };
        Some(Protocol { write_delay, ..protocol })
    }

    /// How its servers share the room. In the talk's designs, each server sees the whole room, and admits all newcomers
    /// or none.
    pub fn configure(self, builder: Builder) -> Builder {
        match self {
            Self::Headcount | Self::V0 => builder,
            Self::V1 | Self::V1_1 => builder.without_shares().refill(Refill::AfterResume),
        }
    }
}
