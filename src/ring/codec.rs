//! The encoding of a minute's filter, for the store and the snapshot.
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic "HCF3"
//!      4      4  number of 64-byte lines in the filter; all numbers are little endian
//!      8      8  generation: hash of format, shape, slot length, slots and key
//!     16      8  slot
//!     24      8  flags: bit 0 = the writer covered this minute (knew all its published tokens), and the value has
//!                them all; bit 1 = the writer covered the minute, and the value has them all together with the
//!                minute's news log; bits 2 to 7 are not read; bits 8 to 63 = that log's number, 0 for any log
//!     32     16  MAC (message authentication code) of bytes 0..32, the version under which the value is stored, and
//!                the payload, with the fleet's key
//!     48      …  payload: the filter's words, gzipped
//! ```
//!
//! Bytes from a store are not trusted. Only a value that passes every check is merged. The order is length, magic,
//! shape, generation, slot, MAC, a decompression that stops at the filter's exact length, and the number of set bits.

use crate::bloom::{Bloom, Shape};
use crate::fingerprint::FingerprintKey;
use crate::fleet_mac::{FleetMac, MAC_BYTES, Purpose};
use crate::time::Slot;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::io::{Read, Write};

const MAGIC: [u8; 4] = *b"HCF3";
/// The length of the fields before the MAC.
const FIELD_BYTES: usize = 32;
const HEADER_BYTES: usize = FIELD_BYTES + MAC_BYTES;
const COVERED: u64 = 1;
const COVERED_WITH_LOG: u64 = 2;
/// The position of the log's number in the flags.
const LOG_NUMBER: u32 = 8;

/// The position of the flags in the gzip header (RFC 1952, section 2.3.1).
const GZIP_FLAGS: usize = 3;

/// The fraction of set bits above which gzip saves nothing. The words of a fuller filter are stored uncompressed.
const DENSE: f64 = 0.4;

/// The largest size of a filter of another generation, unless twice the size of this generation's filters is more. It
/// is enough for filters of about four million users at the default false positive ratio.
const MOST_BYTES_BESIDE: usize = 8 << 20;

/// The largest fraction of set bits in a plausible filter. A fuller filter carries no information, and would admit
/// everybody. It is refused.
const IMPLAUSIBLE_FILL: f64 = 0.98;

/// The number of words that are converted at a time.
const CHUNK_WORDS: usize = 1024;

/// Encodes and decodes the values of this server's generation, and decodes those of other generations.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    shape: Shape,
    generation: u64,
    mac: FleetMac,
    /// The MACs of the fleet's earlier keys. Other generations may have written values with them.
    earlier: Vec<FleetMac>,
}

/// A minute's filter, and whether it has all published tokens of the minute.
#[derive(Debug, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) filter: Bloom,
    pub(crate) covers: Covers,
}

/// Whether a value has all tokens of its minute that were published when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Covers {
    /// Its writer did not know them all.
    Nothing,
    Minute,
    /// It has them together with the minute's news log of this number. With 0, any log will do.
    MinuteWithLog(u64),
}

impl Covers {
    fn flags(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Minute => COVERED,
            Self::MinuteWithLog(number) => COVERED_WITH_LOG | number << LOG_NUMBER,
        }
    }

    pub(crate) fn of_flags(flags: u64) -> Self {
        match flags {
            _ if flags & COVERED != 0 => Self::Minute,
            _ if flags & COVERED_WITH_LOG != 0 => Self::MinuteWithLog(flags >> LOG_NUMBER),
            _ => Self::Nothing,
        }
    }
}

impl From<bool> for Covers {
    fn from(covers: bool) -> Self {
        if covers { Self::Minute } else { Self::Nothing }
    }
}

/// Why stored bytes were refused.
///
/// A refused value is not merged. A value of the server's own generation is counted under its [`reason`](Self::reason)
/// in `headcount_corrupt_values_total`, and the server that found it replaces it with its own filter.
///
/// ```
/// use headcount::DecodeError;
/// let error = DecodeError::Shape { found: 1024, expected: 4096 };
/// assert_eq!(error.to_string(), "1024 lines; this ring's filters have 4096");
/// assert_eq!(error.reason(), "shape");
/// assert!(DecodeError::REASONS.contains(&error.reason()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value, or the filter that it announces, is too short or too long.
    #[error("{found} bytes; a value of this shape has {HEADER_BYTES} to {most}")]
    Length {
        /// The number of bytes found.
        found: usize,
        /// The largest possible number of bytes.
        most: usize,
    },
    /// The value is not a filter, or has another format.
    #[error("not a headcount filter (magic {found:02x?})")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The value is a filter of another size, in lines of 64 bytes.
    #[error("{found} lines; this ring's filters have {expected}")]
    Shape {
        /// The number of lines of the value.
        found: u32,
        /// The number of lines of this ring's filters.
        expected: u32,
    },
    /// The value is a filter of another generation, with another slot length, number of slots or key.
    #[error("generation {found:016x}; this ring's is {expected:016x}")]
    Generation {
        /// The generation of the value.
        found: u64,
        /// The generation of this ring.
        expected: u64,
    },
    /// The value is a filter of another minute.
    #[error("a value of slot {found} under the name of slot {expected}")]
    Slot {
        /// The slot inside the value.
        found: Slot,
        /// The slot in the name of its key.
        expected: Slot,
    },
    /// The value is damaged, or was not written with this fleet's key for this namespace.
    #[error("it is damaged, or no server of this fleet and namespace has written it")]
    Mac,
    /// The payload does not decompress to the exact length of a filter.
    #[error("the payload is not a gzipped filter of this shape")]
    Payload,
    /// Nearly every bit is set.
    #[error("nearly every bit is set")]
    Saturated,
}

impl DecodeError {
    /// Returns the reason as one word, for a metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Length { .. } => "length",
            Self::Magic { .. } => "magic",
            Self::Shape { .. } => "shape",
            Self::Generation { .. } => "generation",
            Self::Slot { .. } => "slot",
            Self::Mac => "mac",
            Self::Payload => "payload",
            Self::Saturated => "saturated",
        }
    }

    /// Every word that [`DecodeError::reason`] can return.
    pub const REASONS: [&'static str; 8] =
        ["length", "magic", "shape", "generation", "slot", "mac", "payload", "saturated"];
}

/// The version of a value that is not in a store.
pub(crate) const NO_VERSION: &str = "";

impl Codec {
    pub(crate) fn new(shape: Shape, generation: u64, key: &FingerprintKey) -> Self {
        Self { shape, generation, mac: FleetMac::new(key, generation), earlier: Vec::new() }
    }

    /// Returns a codec that also reads values of other generations that were written with these keys.
    pub(crate) fn with_earlier_keys(self, earlier_keys: &[FingerprintKey]) -> Self {
        let earlier = earlier_keys.iter().map(|key| FleetMac::new(key, self.generation)).collect();
        Self { earlier, ..self }
    }

    /// Returns a codec for values of this namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let mac = |mac: &FleetMac| mac.clone().in_namespace(namespace);
        Self { mac: mac(&self.mac), earlier: self.earlier.iter().map(mac).collect(), ..*self }
    }

    /// Returns the MAC with the fleet's key. Values that are not filters use it, too.
    pub(crate) fn mac(&self) -> &FleetMac {
        &self.mac
    }

    /// Returns the MAC functions that check values of another generation: the one with the fleet's key first, then one
    /// for each of the fleet's earlier keys.
    pub(crate) fn macs_of(&self, generation: u64) -> impl Iterator<Item = FleetMac> {
        std::iter::once(&self.mac).chain(&self.earlier).map(move |mac| mac.with_generation(generation))
    }

    #[cfg(test)]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns an upper bound of a value's size.
    pub(crate) fn most_bytes(&self) -> usize {
        most_bytes(self.shape.bytes())
    }

    /// Returns the most bytes that a filter of another generation may have, uncompressed.
    pub(crate) fn most_bytes_beside(&self) -> usize {
        most_bytes_beside(self.shape.bytes())
    }

    /// Encodes the filter of a minute, to be stored under this version. Under another version the value is not valid.
    /// Otherwise somebody could show a server its own earlier value as that of another server.
    ///
    /// # Panics
    /// If the filter has another shape.
    pub(crate) fn encode(&self, slot: Slot, version: &str, covers: impl Into<Covers>, filter: &Bloom) -> Vec<u8> {
        assert_eq!(filter.shape(), self.shape, "filters of one ring share one shape");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.shape.bytes() / 2);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.shape.lines().to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&slot.0.to_le_bytes());
        bytes.extend_from_slice(&covers.into().flags().to_le_bytes());
        bytes.extend_from_slice(&[0; MAC_BYTES]);
        let level = if filter.fill_ratio() > DENSE { Compression::none() } else { Compression::fast() };
        let mut encoder = GzEncoder::new(bytes, level);
        let mut chunk = Vec::with_capacity(CHUNK_WORDS * 8);
        for words in filter.words().chunks(CHUNK_WORDS) {
            chunk.clear();
            chunk.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            encoder.write_all(&chunk).expect("writing to a Vec cannot fail");
        }
        let mut bytes = encoder.finish().expect("writing to a Vec cannot fail");
        self.prove(version, &mut bytes);
        bytes
    }

    /// Writes the MAC into an encoded value.
    pub(crate) fn prove(&self, version: &str, bytes: &mut [u8]) {
        let (header, payload) = bytes.split_at_mut(HEADER_BYTES);
        let (fields, proof) = header.split_at_mut(FIELD_BYTES);
        proof.copy_from_slice(&self.mac.sign(Purpose::Filter, &[fields, version.as_bytes(), payload]));
    }

    /// Decodes the filter of minute `slot`, which is stored under this version, from untrusted bytes.
    ///
    /// # Cost
    /// Allocates one filter at most, whatever the bytes are.
    pub(crate) fn decode(&self, slot: Slot, version: &str, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        let most = self.most_bytes();
        let length = DecodeError::Length { found: bytes.len(), most };
        if bytes.len() > most {
            return Err(length);
        }
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Err(length) };
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let magic = std::array::from_fn(|byte| header[byte]);
        if magic != MAGIC {
            return Err(DecodeError::Magic { found: magic });
        }
        let lines = u32::from_le_bytes(std::array::from_fn(|byte| header[4 + byte]));
        if lines != self.shape.lines() {
            return Err(DecodeError::Shape { found: lines, expected: self.shape.lines() });
        }
        if number(8) != self.generation {
            return Err(DecodeError::Generation { found: number(8), expected: self.generation });
        }
        if number(16) != slot.0 {
            return Err(DecodeError::Slot { found: Slot(number(16)), expected: slot });
        }
        let (fields, proof) = header.split_at(FIELD_BYTES);
        if !self.mac.verify(Purpose::Filter, &[fields, version.as_bytes(), payload], proof) {
            return Err(DecodeError::Mac);
        }
        let filter = self.inflate(payload)?;
        if filter.fill_ratio() > IMPLAUSIBLE_FILL {
            return Err(DecodeError::Saturated);
        }
        Ok(Decoded { filter, covers: Covers::of_flags(number(24)) })
    }

    /// Decodes the filter of minute `slot` of another generation, which may have another shape. Also returns the index
    /// of the earlier key that it was written with, or `None` for the current key. Filters of
    /// another size can be searched, too: only the line of a token depends on the size, and not the bits in the line.
    ///
    /// # Cost
    /// Allocates one filter of the other generation, and only if the MAC is valid.
    pub(crate) fn decode_beside(
        &self,
        generation: u64,
        slot: Slot,
        version: &str,
        bytes: &[u8],
    ) -> Result<(Decoded, Option<usize>), DecodeError> {
        let lines = bytes.get(4..8).and_then(|lines| lines.try_into().ok()).map_or(0, u32::from_le_bytes);
        let most = self.most_bytes_beside();
        let shape = Shape::of_lines(lines).ok_or(DecodeError::Length { found: bytes.len(), most })?;
        if shape.bytes() > most {
            return Err(DecodeError::Length { found: shape.bytes(), most });
        }
        let mut found = Err(DecodeError::Mac);
        for (place, mac) in self.macs_of(generation).enumerate() {
            let theirs = Self { shape, generation, mac, earlier: Vec::new() };
            found = theirs.decode(slot, version, bytes).map(|decoded| (decoded, place.checked_sub(1)));
            if found != Err(DecodeError::Mac) {
                break;
            }
        }
        found
    }

    fn inflate(&self, payload: &[u8]) -> Result<Bloom, DecodeError> {
        // A name or comment in the gzip header would be kept in memory. `encode` writes none.
        if payload.get(GZIP_FLAGS) != Some(&0) {
            return Err(DecodeError::Payload);
        }
        let mut decoder = GzDecoder::new(payload);
        let mut filter = Bloom::new(self.shape);
        let mut chunk = vec![0; CHUNK_WORDS * 8];
        for at in (0..self.shape.words()).step_by(CHUNK_WORDS) {
            let chunk = &mut chunk[..(self.shape.words() - at).min(CHUNK_WORDS) * 8];
            decoder.read_exact(chunk).map_err(|_| DecodeError::Payload)?;
            filter.fill_words(at, chunk.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
        }
        // Reading one more byte reaches the end, where gzip's checksum is verified.
        match decoder.read(&mut [0]) {
            Ok(0) => Ok(filter),
            _ => Err(DecodeError::Payload),
        }
    }
}

/// Returns an upper bound of the size of a value whose filter has this size. gzip adds a frame, and at most 5 bytes per
/// 16 KiB.
pub(crate) fn most_bytes(filter_bytes: usize) -> usize {
    HEADER_BYTES + filter_bytes + filter_bytes / 1000 + 64
}

/// Returns the most bytes that a filter of another generation may have, uncompressed, for a server with filters of this
/// size.
pub(crate) fn most_bytes_beside(filter_bytes: usize) -> usize {
    MOST_BYTES_BESIDE.max(2 * filter_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use proptest::prelude::*;

    const SLOT: Slot = Slot(29_000_000);
    const VERSION: &str = "k3v9-1";

    fn codec() -> Codec {
        codec_of(2000, 7, 1)
    }

    fn codec_of(capacity: u64, generation: u64, key: u8) -> Codec {
        let key = FingerprintKey::new(&[key; 16]).unwrap();
        Codec::new(Shape::for_capacity(capacity, 1e-3).unwrap(), generation, &key)
    }

    fn filter(codec: &Codec, users: u64) -> Bloom {
        let mut filter = Bloom::new(codec.shape());
        let mut random = fastrand::Rng::with_seed(users);
        for _ in 0..users {
            filter.insert(Fingerprint(random.u64(..)));
        }
        filter
    }

    proptest! {
        #[test]
        fn an_encoded_filter_is_decoded(users in 0..6000_u64, covered: bool) {
            let codec = codec();
            let filter = filter(&codec, users);
            let bytes = codec.encode(SLOT, VERSION, covered, &filter);
            prop_assert!(bytes.len() <= codec.most_bytes());
            prop_assert_eq!(codec.decode(SLOT, VERSION, &bytes), Ok(Decoded { filter, covers: covered.into() }));
        }

        #[test]
        fn no_flipped_bit_gets_through(at: prop::sample::Index, bit in 0..8_u8) {
            let codec = codec();
            let mut bytes = codec.encode(SLOT, VERSION, true, &filter(&codec, 200));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(codec.decode(SLOT, VERSION, &bytes).is_err());
        }

        #[test]
        fn noise_is_refused(bytes: Vec<u8>) {
            prop_assert!(codec().decode(SLOT, VERSION, &bytes).is_err());
        }
    }

    #[test]
    fn a_value_cut_at_any_byte_is_refused() {
        let codec = codec();
        let bytes = codec.encode(SLOT, VERSION, true, &filter(&codec, 300));
        for length in 0..bytes.len() {
            assert!(codec.decode(SLOT, VERSION, &bytes[..length]).is_err(), "cut at {length}");
        }
        let extended = [bytes.as_slice(), b"!"].concat();
        assert_eq!(codec.decode(SLOT, VERSION, &extended), Err(DecodeError::Mac));
    }

    #[test]
    fn a_value_from_elsewhere_is_refused_with_the_reason() {
        let codec = codec();
        let bytes = codec.encode(SLOT, VERSION, true, &filter(&codec, 10));
        let reason = |codec: Codec, slot| codec.decode(slot, VERSION, &bytes).unwrap_err().reason();
        assert_eq!(reason(codec_of(9000, 7, 1), SLOT), "shape");
        assert_eq!(reason(codec_of(2000, 8, 1), SLOT), "generation");
        assert_eq!(reason(codec_of(2000, 7, 2), SLOT), "mac");
        assert_eq!(reason(codec.in_namespace("another"), SLOT), "mac");
        assert_eq!(reason(codec.clone(), SLOT.plus(1)), "slot");
        assert_eq!(codec.decode(SLOT, "k3v9-2", &bytes), Err(DecodeError::Mac), "under another version");
        let huge = vec![b'H'; codec.most_bytes() + 1];
        assert!(matches!(codec.decode(SLOT, VERSION, &huge), Err(DecodeError::Length { .. })));
    }

    #[test]
    fn a_value_of_another_shape_is_read_with_its_key() {
        let theirs = codec_of(9000, 8, 1);
        let filter = filter(&theirs, 500);
        let bytes = theirs.encode(SLOT, VERSION, true, &filter);
        let read = |codec: Codec, generation, slot| codec.decode_beside(generation, slot, VERSION, &bytes);
        assert_eq!(read(codec(), 8, SLOT), Ok((Decoded { filter, covers: Covers::Minute }, None)));
        let reason = |found: Result<_, DecodeError>| found.unwrap_err().reason();
        assert_eq!(reason(read(codec(), 9, SLOT)), "generation");
        assert_eq!(reason(read(codec(), 8, SLOT.plus(1))), "slot");
        assert_eq!(reason(read(codec_of(2000, 7, 2), 8, SLOT)), "mac", "another key");
        let mut huge = bytes.clone();
        huge[4..8].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        assert_eq!(reason(codec().decode_beside(8, SLOT, VERSION, &huge)), "length", "64 MB");
        let [stranger, earlier] = [3, 1].map(|key| FingerprintKey::new(&[key; 16]).unwrap());
        let successor = codec_of(2000, 7, 2).with_earlier_keys(&[stranger.clone(), earlier]);
        assert_eq!(read(successor, 8, SLOT).unwrap().1, Some(1), "the key that wrote it is named");
        assert_eq!(reason(read(codec_of(2000, 7, 2).with_earlier_keys(&[stranger]), 8, SLOT)), "mac");
        for length in 0..bytes.len() {
            assert!(codec().decode_beside(8, SLOT, VERSION, &bytes[..length]).is_err(), "cut at {length}");
        }
    }

    /// Writes an arbitrary payload with a correct header and MAC, as a faulty server of the fleet might.
    fn forged(codec: &Codec, raw: &[u8]) -> Vec<u8> {
        let mut bytes = codec.encode(SLOT, VERSION, true, &filter(codec, 0));
        bytes.truncate(HEADER_BYTES);
        let mut encoder = GzEncoder::new(bytes, Compression::best());
        encoder.write_all(raw).unwrap();
        let mut bytes = encoder.finish().unwrap();
        codec.prove(VERSION, &mut bytes);
        bytes
    }

    #[test]
    fn a_bomb_stops_at_the_filters_length() {
        let codec = codec();
        let bomb = forged(&codec, &vec![0; 3_000_000]);
        assert!(bomb.len() < codec.most_bytes());
        assert_eq!(codec.decode(SLOT, VERSION, &bomb), Err(DecodeError::Payload));
        let short = forged(&codec, &vec![0; codec.shape().bytes() - 1]);
        assert_eq!(codec.decode(SLOT, VERSION, &short), Err(DecodeError::Payload));
    }

    #[test]
    fn a_gzip_header_with_a_name_is_refused_before_it_is_kept() {
        let codec = codec();
        let plain = codec.encode(SLOT, VERSION, true, &Bloom::new(codec.shape()));
        let named = flate2::GzBuilder::new()
            .filename("n".repeat(500))
            .write(plain[..HEADER_BYTES].to_vec(), Compression::best());
        let mut named = named.finish().unwrap();
        codec.prove(VERSION, &mut named);
        assert_eq!(codec.decode(SLOT, VERSION, &named), Err(DecodeError::Payload));
    }

    #[test]
    fn a_value_says_whether_it_covers_its_minute_and_later_flags_are_left_alone() {
        let codec = codec();
        let filter = filter(&codec, 20);
        let with_flags = |flags: u64| {
            let mut bytes = codec.encode(SLOT, VERSION, true, &filter);
            bytes[24..32].copy_from_slice(&flags.to_le_bytes());
            codec.prove(VERSION, &mut bytes);
            codec.decode(SLOT, VERSION, &bytes).unwrap()
        };
        let covers = |flags| with_flags(flags).covers;
        assert_eq!(covers(0b1111_1100), Covers::Nothing);
        assert_eq!(covers(u64::MAX), Covers::Minute);
        assert_eq!(covers(0x0012_34fe), Covers::MinuteWithLog(0x1234));
        assert_eq!(covers(!1), Covers::MinuteWithLog(u64::MAX >> LOG_NUMBER));
    }

    #[test]
    fn a_filter_of_ones_is_refused() {
        let codec = codec();
        let ones = forged(&codec, &vec![0xff; codec.shape().bytes()]);
        assert_eq!(codec.decode(SLOT, VERSION, &ones), Err(DecodeError::Saturated));
    }

    /// Noise, which gzip cannot compress.
    fn incompressible(codec: &Codec) -> Bloom {
        let mut random = fastrand::Rng::with_seed(1);
        let mut filter = Bloom::new(codec.shape());
        filter.fill_words(0, std::iter::repeat_with(|| random.u64(..)).take(codec.shape().words()));
        filter
    }

    #[test]
    fn no_value_is_longer_than_the_bound_and_the_bound_is_close() {
        // Sizes: less than a chunk, and several chunks with a remainder.
        for capacity in [100, 2000, 20_000, 300_000] {
            let codec = codec_of(capacity, 7, 1);
            let filter = incompressible(&codec);
            let bytes = codec.encode(SLOT, VERSION, true, &filter);
            assert!(bytes.len() <= codec.most_bytes(), "{} of {}", bytes.len(), codec.most_bytes());
            assert!(codec.most_bytes() <= codec.shape().bytes() * 101 / 100 + 128);
            assert_eq!(codec.decode(SLOT, VERSION, &bytes), Ok(Decoded { filter, covers: Covers::Minute }));
            // The greatest length passes the check of the length, and one byte more does not.
            let noise = vec![0; codec.most_bytes() + 1];
            assert_eq!(codec.decode(SLOT, VERSION, &noise[1..]).unwrap_err().reason(), "magic");
            assert_eq!(codec.decode(SLOT, VERSION, &noise).unwrap_err().reason(), "length");
        }
    }

    #[test]
    fn a_dense_filter_is_stored_uncompressed_and_a_sparse_one_is_compressed() {
        let codec = codec_of(20_000, 7, 1);
        let raw = codec.shape().bytes();
        // Regular patterns, which gzip would compress to almost nothing: one of four bits set, and three of four.
        let pattern = |word: u64| {
            let mut filter = Bloom::new(codec.shape());
            filter.fill_words(0, std::iter::repeat_n(word, codec.shape().words()));
            codec.encode(SLOT, VERSION, true, &filter).len()
        };
        assert!(pattern(0x1111_1111_1111_1111) < raw / 10);
        assert!(pattern(0x7777_7777_7777_7777) > raw);
    }
}
