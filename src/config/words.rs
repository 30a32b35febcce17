//! Phrases that say which values a key accepts. Error messages and the reference use them.

pub(crate) const TIME: &str = "a number and its unit (ms, s, m, h or d) in quotes";
pub(crate) const TIME_OR_AUTO: &str = "\"auto\", or a number and its unit (ms, s, m, h or d) in quotes";
pub(crate) const A_FILE: &str = "the name of a file";
pub(crate) const AN_ADDRESS: &str = "an address and a port";
pub(crate) const TRUE_OR_FALSE: &str = "true or false, without quotes";
pub(crate) const ADDRESSES: &str = "a list of host:port";
