//! Places at which a test makes the program panic. Without the feature `failpoints` there are none, and they cost nothing.
//!
//! The environment variable `FAILPOINTS` sets them at the start (`worker-tick=1*panic;round-look=panic`), and
//! `PUT /failpoints/{name}` on the admin listener while the program runs; what can be set, the crate `fail` says.

/// Tells a place what to do: `1*panic`, `off`.
#[cfg(all(feature = "failpoints", feature = "admin"))]
pub(crate) async fn set(name: axum::extract::Path<String>, actions: String) -> Result<(), String> {
    fail::cfg(name.0, &actions)
}

/// A place with this name.
#[inline(always)]
pub(crate) fn at(_name: &'static str) {
    #[cfg(feature = "failpoints")]
    fail::fail_point!(_name);
}
