//! Checks untrusted text, and turns doc comments into the descriptions of a schema.

/// Returns whether a character controls a terminal or the direction of text (Unicode's Bidi_Control). Text with such a
/// character may look like other text.
pub(crate) fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the prose of a doc comment: the part before its examples, with rustdoc's links as inline code.
#[cfg(feature = "admin")]
pub(crate) fn prose(doc: &str) -> String {
    let mut rest = doc.split("```").next().unwrap_or_default().trim();
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        text.push_str(before);
        text.extend(["`", name, "`"]);
        rest = after.strip_prefix('(').and_then(|after| after.split_once(')')).map_or(after, |(_, after)| after);
    }
    text + rest
}
