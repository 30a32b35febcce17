//! The choice of a language (RFC 4647 §3.4).

/// Returns the first of the `available` languages that a reader wants. `wanted` has the reader's languages with their
/// qualities, as in `Accept-Language` (RFC 9110 §12.5.4).
pub(super) fn choose<'l>(
    wanted: impl Iterator<Item = (&'l str, f32)>,
    available: impl Fn(&str) -> Option<usize>,
) -> Option<usize> {
    let mut best: Option<(f32, usize)> = None;
    for (range, quality) in wanted {
        if quality > best.map_or(0.0, |(quality, _)| quality)
            && let Some(found) = lookup(range, &available)
        {
            best = Some((quality, found));
        }
    }
    best.map(|(_, found)| found)
}

/// Looks a language up, and without success the more general one: `zh` for `zh-Hant-TW`.
fn lookup(mut range: &str, available: impl Fn(&str) -> Option<usize>) -> Option<usize> {
    loop {
        match available(range) {
            Some(found) => return Some(found),
            None => range = range.rsplit_once('-')?.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_s_first_language_that_is_available_is_chosen() {
        let available = ["en", "de", "zh", "pt-br"];
        let find = |range: &str| available.iter().position(|language| language.eq_ignore_ascii_case(range));
        for (wanted, chosen) in [
            (&[("de", 1.0)][..], Some("de")),
            (&[("de-AT", 1.0), ("en", 0.8)], Some("de")),
            (&[("fr", 1.0), ("en", 0.5), ("DE", 0.7)], Some("de")),
            (&[("zh-Hant-TW", 1.0)], Some("zh")),
            (&[("pt-BR", 1.0)], Some("pt-br")),
            (&[("pt", 1.0)], None),
            (&[("en", 0.0)], None),
            (&[("de", 0.5), ("en", 0.5)], Some("de")),
            (&[("*", 1.0)], None),
            (&[("", 1.0), ("-", 1.0), ("de-", 1.0)], Some("de")),
            (&[], None),
        ] {
            assert_eq!(choose(wanted.iter().copied(), find).map(|at| available[at]), chosen, "{wanted:?}");
        }
    }
}
