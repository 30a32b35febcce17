//! `headcount serve`: the check listener, the admin listener, and a graceful stop.

mod check;
mod config;
mod confirm;
mod envelope;
mod limits;
mod listener;
mod recipes;
mod serve;
mod size;
mod touch;

pub use config::{Flags, LoadError, Loaded, load};
pub use recipes::Recipe;
pub use serve::{ServeError, serve};
pub use size::Size;
