//! The verbs of the `headcount` program. `serve` runs the check listener and the admin listener, and stops gracefully.

mod check;
mod config;
mod confirm;
mod connection;
mod demo;
mod files;
mod limits;
mod listener;
mod operator;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod purge;
mod recipes;
mod screen;
mod serve;
mod size;
mod sizing;
mod state;
mod supervisor;
mod touch;
mod validate;
mod why;

pub use config::{Flags, LoadError, Loaded, load, resolve};
pub use demo::Demo;
pub use operator::{Operator, OperatorError};
pub use recipes::Recipe;
pub use screen::{Screen, opening_line};
pub use serve::{ServeError, serve};
pub use size::Size;
pub use validate::{RedisFindings, Validated};
pub use why::Why;
