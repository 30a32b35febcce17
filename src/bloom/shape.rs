//! The size of a filter, and what can be estimated from its number of set bits.

use super::LANES;

/// The size of a filter: how many lines of 512 bits it has. Filters of the same shape can be merged.
///
/// ```
/// use headcount::bloom::Shape;
/// let shape = Shape::for_capacity(65_536, 1e-3)?;
/// assert_eq!(shape.bytes(), 128_832, "15.7 bits a user, in whole lines of 64 bytes");
/// assert!(shape.false_positive_ratio(65_536.0) <= 1e-3);
/// // Above its capacity a filter still finds every user that it holds, but it has more false positives.
/// assert!((0.03..0.04).contains(&shape.false_positive_ratio(2.0 * 65_536.0)));
/// # Ok::<(), headcount::bloom::ShapeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    lines: u32,
}

/// An estimate of the number of distinct users in a filter, with a 95 % interval of its sampling error.
///
/// ```
/// use headcount::bloom::Shape;
/// let shape = Shape::for_capacity(100_000, 1e-3)?;
/// let estimate = shape.estimate(shape.bits() / 5);
/// assert_eq!(estimate.users.round(), 43_872.0);
/// assert!(estimate.high - estimate.low < 0.01 * estimate.users, "within half a percent, 19 times of 20");
/// assert!(shape.estimate(shape.bits()).saturated);
/// # Ok::<(), headcount::bloom::ShapeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The estimate itself.
    pub users: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// Whether every bit is set. The filter then holds at least `users` users, and the estimate has no upper bound.
    pub saturated: bool,
}

const LANE_BITS: f64 = 64.0;
const LINE_BITS: u64 = 64 * LANES as u64;

impl Shape {
    /// The largest capacity: a filter of about 130 MB at the default ratio.
    pub const MAX_CAPACITY: u64 = 1 << 26;
    /// The smallest and the largest false positive ratio that can be configured.
    pub const RATIOS: std::ops::RangeInclusive<f64> = 1e-6..=0.1;

    /// Returns the smallest shape whose false positive ratio is at most `ratio` while it holds `capacity` users.
    ///
    /// # Errors
    /// [`ShapeError`] if a value is outside its bounds.
    ///
    /// ```
    /// use headcount::bloom::Shape;
    /// let [rough, fine] = [1e-2, 1e-4].map(|ratio| Shape::for_capacity(1_000_000, ratio).unwrap());
    /// assert!(fine.bits() > 2 * rough.bits(), "a hundredth of the mistakes for 2.3 times the memory");
    /// ```
    pub fn for_capacity(capacity: u64, ratio: f64) -> Result<Self, ShapeError> {
        if !(1..=Self::MAX_CAPACITY).contains(&capacity) {
            return Err(ShapeError::Capacity { found: capacity });
        }
        if !Self::RATIOS.contains(&ratio) {
            return Err(ShapeError::Ratio { found: ratio });
        }
        // A line for each user is always enough: even at the strictest ratio a user needs only 52 of a line's 512 bits.
        let (mut too_few, mut enough) = (0, u32::try_from(capacity).unwrap_or(u32::MAX).max(16));
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let fits = Self { lines: middle }.false_positive_ratio(capacity as f64) <= ratio;
            if fits { enough = middle } else { too_few = middle }
        }
        Ok(Self { lines: enough })
    }

    /// Returns the shape with this number of lines, or `None` if the number is 0 or larger than any capacity needs.
    pub(crate) fn of_lines(lines: u32) -> Option<Self> {
        (1..=Self::MAX_CAPACITY as u32).contains(&lines).then_some(Self { lines })
    }

    #[inline]
    pub(crate) fn lines(self) -> u32 {
        self.lines
    }

    /// Returns the number of 64-bit words of a filter.
    #[inline]
    pub fn words(self) -> usize {
        self.lines as usize * LANES
    }

    /// Returns the number of bits of a filter.
    pub fn bits(self) -> u64 {
        u64::from(self.lines) * LINE_BITS
    }

    /// Returns the number of bytes of a filter.
    pub fn bytes(self) -> usize {
        self.words() * 8
    }

    /// Estimates how many distinct users a filter with `ones` set bits holds: −64·L·ln(1 − x/(512·L)) for x set bits
    /// in L lines. The interval is ±1.96 standard deviations.
    ///
    /// A user sets one bit in each of the eight lanes of 64 bits of one line. It leaves a given bit of a lane unset
    /// with probability 1 − 1/(64·L). So the eight lanes are eight linear counters of 64·L bits that count the same
    /// users. Their errors are those of linear counting, plus a small part that the lanes have in common because they
    /// share the line.
    ///
    /// # Source
    /// Swamidass & Baldi, 2007 (the estimate); Whang, Vander-Zanden & Taylor, "A Linear-Time Probabilistic Counting
    /// Algorithm", 1990 (its error).
    pub fn estimate(self, ones: u64) -> Estimate {
        let saturated = ones >= self.bits();
        let ones = ones.min(self.bits() - 1) as f64;
        let lane_bits = LANE_BITS * f64::from(self.lines);
        let load = -(-ones / self.bits() as f64).ln_1p();
        let users = lane_bits * load;
        let counting = lane_bits * (load.exp() - 1.0 - load) / LANES as f64;
        let sharing = 0.4375 * f64::from(self.lines) * load * load;
        let margin = 1.96 * (counting + sharing).max(0.0).sqrt();
        Estimate { users, low: (users - margin).max(0.0), high: users + margin, saturated }
    }

    /// Returns the expected fraction of bits that are set, 0 to 1, in a filter that holds `users` users.
    pub fn fill_ratio(self, users: f64) -> f64 {
        -(-users / (LANE_BITS * f64::from(self.lines))).exp_m1()
    }

    /// Returns the probability that a filter that holds `users` users takes an unknown user for a known one.
    ///
    /// In a line with j users, a given bit of a lane is set with probability 1 − (63/64)^j. The number j has a Poisson
    /// distribution with mean c = users / lines. Averaged over j, the eighth power of this probability is Σᵢ
    /// C(8,i)·(−1)ⁱ·exp(−c·(1 − (63/64)ⁱ)).
    pub fn false_positive_ratio(self, users: f64) -> f64 {
        const BINOMIALS: [f64; LANES + 1] = [1.0, -8.0, 28.0, -56.0, 70.0, -56.0, 28.0, -8.0, 1.0];
        let per_line = users / f64::from(self.lines);
        let mut hit = 0.0;
        let mut spared = 1.0;
        for binomial in BINOMIALS {
            hit += binomial * (-per_line * (1.0 - spared)).exp();
            spared *= 1.0 - 1.0 / LANE_BITS;
        }
        hit.clamp(0.0, 1.0)
    }
}

/// The reason why a shape was refused.
///
/// ```
/// use headcount::bloom::{Shape, ShapeError};
/// assert_eq!(Shape::for_capacity(0, 1e-3), Err(ShapeError::Capacity { found: 0 }));
/// let error = Shape::for_capacity(65_536, 0.5).unwrap_err();
/// assert_eq!(error.to_string(), "false_positive_rate is 0.5; it must be between 1e-6 and 0.1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// The capacity is outside its bounds.
    #[error("capacity is {found}; it must be between 1 and {}", Shape::MAX_CAPACITY)]
    Capacity {
        /// The requested capacity.
        found: u64,
    },
    /// The false positive ratio is outside its bounds.
    #[error("false_positive_rate is {found}; it must be between {:e} and \
        {}", Shape::RATIOS.start(), Shape::RATIOS.end())]
    Ratio {
        /// The requested ratio.
        found: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits per key of a plain Bloom filter with the best number of hashes.
    fn plain_bits_per_key(ratio: f64) -> f64 {
        -ratio.ln() / std::f64::consts::LN_2.powi(2)
    }

    #[test]
    fn a_shape_is_the_smallest_that_keeps_its_ratio() {
        for capacity in [1, 1000, 16_384, 1_000_000] {
            for ratio in [1e-2, 1e-3, 1e-4, 1e-6] {
                let shape = Shape::for_capacity(capacity, ratio).unwrap();
                assert!(shape.false_positive_ratio(capacity as f64) <= ratio);
                if shape.lines > 1 {
                    let smaller = Shape { lines: shape.lines - 1 };
                    assert!(smaller.false_positive_ratio(capacity as f64) > ratio);
                }
            }
        }
    }

    #[test]
    fn a_line_per_token_costs_little_beside_a_plain_filter() {
        for (ratio, most) in [(1e-2, 1.06), (1e-3, 1.10), (1e-4, 1.25)] {
            let shape = Shape::for_capacity(1_000_000, ratio).unwrap();
            let bits_per_key = shape.bits() as f64 / 1e6;
            assert!(bits_per_key <= most * plain_bits_per_key(ratio), "{bits_per_key} bits at {ratio}");
        }
    }

    #[test]
    fn an_empty_filter_holds_nobody_and_a_full_one_says_so() {
        let shape = Shape::for_capacity(1000, 1e-3).unwrap();
        let empty = shape.estimate(0);
        assert_eq!((empty.users, empty.low, empty.high, empty.saturated), (0.0, 0.0, 0.0, false));
        let full = shape.estimate(shape.bits());
        assert!(full.saturated && full.users.is_finite() && full.users > 1000.0);
    }

    #[test]
    fn values_outside_the_bounds_are_refused() {
        for capacity in [0, Shape::MAX_CAPACITY + 1, u64::MAX] {
            assert_eq!(Shape::for_capacity(capacity, 1e-3), Err(ShapeError::Capacity { found: capacity }));
        }
        for ratio in [0.0, -1.0, 0.2, 1.0, 1e-9, f64::INFINITY] {
            assert_eq!(Shape::for_capacity(1, ratio), Err(ShapeError::Ratio { found: ratio }));
        }
        assert!(Shape::for_capacity(1, f64::NAN).is_err());
    }
}
