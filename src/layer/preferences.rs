//! What a client prefers, by quality (RFC 9110 §12.4.2).

use http::{HeaderMap, HeaderName};

/// The most values that are read.
const MOST: usize = 50;

/// Returns the values of a header such as `Accept` or `Accept-Language`, each with its quality. A quality that is none
/// is 0.
pub(super) fn preferences(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (&str, f32)> {
    let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let values = lists.flat_map(|list| list.split(',')).take(MOST);
    values.map(|value| {
        let mut parts = value.split(';').map(str::trim);
        let named = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok());
        (named, quality.filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or(0.0))
    })
}
