//! The pause after fetches that brought nothing: it doubles with each fetch, up to a bound.

/// How many fetches may bring nothing before the backoff begins. A value may be damaged for a moment, and
/// until the next fetch its users are unknown here.
const PATIENCE: u32 = 3;

/// The pause after fetches that brought nothing.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Backoff {
    /// The number of fetches that brought nothing.
    fruitless_fetches: u32,
    /// The number of rounds until the next fetch.
    pause: u32,
}

impl Backoff {
    /// Notes a fetch that brought nothing. The next pause takes at most 2 to the power of `longest` rounds.
    pub(super) fn fail(&mut self, longest: u32) {
        self.fruitless_fetches = self.fruitless_fetches.saturating_add(1);
        let doublings = self.fruitless_fetches.saturating_sub(PATIENCE - 1).min(longest);
        self.pause = if doublings > 0 { 1 << doublings } else { 0 };
    }

    /// Notes that a round begins.
    pub(super) fn begin_round(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    /// Returns whether a fetch is allowed now.
    pub(super) fn is_over(&self) -> bool {
        self.pause == 0
    }

    /// Returns whether further fetches that bring nothing lead to pauses.
    pub(super) fn has_begun(&self) -> bool {
        self.fruitless_fetches >= PATIENCE
    }
}
