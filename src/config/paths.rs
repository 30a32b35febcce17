//! Path rules: an exact path, or a prefix that ends in `/*`.

/// A list of path rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathPatterns {
    exact: Vec<String>,
    /// Without the star, with the slash.
    prefixes: Vec<String>,
}

impl PathPatterns {
    /// Reads rules; returns the first that means nothing.
    pub(crate) fn parse(patterns: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for pattern in patterns {
            let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
            let path = prefix.unwrap_or(pattern);
            if !path.starts_with('/') || path.contains(['*', '?', '#', ' ']) {
                return Err(pattern.clone());
            }
            match prefix {
                Some(prefix) => parsed.prefixes.push(prefix.to_owned()),
                None => parsed.exact.push(pattern.clone()),
            }
        }
        Ok(parsed)
    }

    /// Whether a rule covers the path (with or without a query).
    ///
    /// A path that a backend could read as another one (`/open/../secret`, `//`, escaped dots and slashes) matches
    /// nothing: a rule must not open a door that it does not name.
    pub(crate) fn matches(&self, path_and_query: &str) -> bool {
        let path = path_and_query.split(['?', '#']).next().unwrap_or_default();
        let matched = self.exact.iter().any(|exact| exact == path)
            || self.prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()));
        matched && !is_ambiguous(path)
    }
}

impl PathPatterns {
    /// Whether a rule may cover the path: what a backend could read as another path may be any. For rules that restrict,
    /// as [`matches`](Self::matches) is for those that allow.
    #[cfg(feature = "tower")]
    pub(crate) fn may_match(&self, path_and_query: &str) -> bool {
        let path = path_and_query.split(['?', '#']).next().unwrap_or_default();
        self.matches(path) || is_ambiguous(path) || path.contains('%') || !path.is_ascii()
    }
}

fn is_ambiguous(path: &str) -> bool {
    let folded = path.to_ascii_lowercase();
    ["..", "//", "/./", "\\", "%2e", "%2f", "%5c", "%25", "%00", ";"].iter().any(|trick| folded.contains(trick))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(of: &[&str]) -> PathPatterns {
        PathPatterns::parse(&of.iter().map(|&one| one.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_rule_that_restricts_covers_what_may_be_its_path() {
        let rules = patterns(&["/login", "/api/auth/*"]);
        for path in [
            "/login",
            "/login?x=/play",
            "/api/auth/token",
            "/api/auth//token",
            "/api/auth/token;x",
            "/api/auth/x/../token",
            "/api//auth/token",
            "/%6cogin",
            "/./login",
            "//",
            "/l\u{f6}gin",
        ] {
            assert!(rules.may_match(path), "{path}");
        }
        for path in ["/play", "/", "/loginx", "/play?x=/login"] {
            assert!(!rules.may_match(path), "{path}");
        }
    }

    #[test]
    fn an_exact_rule_covers_its_path_alone() {
        let rules = patterns(&["/healthz"]);
        assert!(rules.matches("/healthz"));
        assert!(rules.matches("/healthz?verbose=1"));
        for other in ["/healthz/", "/healthz/x", "/Healthz", "/", "", "/x/healthz", "/x?/healthz"] {
            assert!(!rules.matches(other), "{other}");
        }
    }

    #[test]
    fn a_prefix_rule_covers_what_lies_below() {
        let rules = patterns(&["/static/*"]);
        assert!(rules.matches("/static/app.js"));
        assert!(rules.matches("/static/"));
        assert!(!rules.matches("/static"));
        assert!(!rules.matches("/statics/app.js"));
    }

    #[test]
    fn a_path_that_a_backend_may_read_differently_matches_nothing() {
        let rules = patterns(&["/static/*", "/*"]);
        for trick in
            ["/static/../game", "/static/%2e%2E/game", "/static//game", "/static/%2fgame", "/static/..;/game", "/a\\b"]
        {
            assert!(!rules.matches(trick), "{trick}");
        }
    }

    #[test]
    fn a_rule_that_means_nothing_is_refused() {
        for rule in ["", "healthz", "*", "/a*", "/*/b", "/a?b"] {
            assert!(PathPatterns::parse(&[rule.to_owned()]).is_err(), "{rule:?}");
        }
    }
}
