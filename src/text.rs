//! Checks of untrusted text that people read.

/// Returns whether a character controls a terminal or the direction of text (Unicode's Bidi_Control). Text with such a
/// character may look like other text.
pub(crate) fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
