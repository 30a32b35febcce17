//! Text of others that people read.

/// Whether a character controls a terminal, or the direction in which text is read (Unicode's Bidi_Control): words that hold
/// one may look like others.
pub(crate) fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
