//! `headcount serve`: the check listener, the admin listener, and a graceful stop.

mod check;
mod config;
mod listener;
mod serve;
mod touch;

pub use config::{Flags, LoadError, Loaded, load};
pub use serve::{ServeError, serve};
