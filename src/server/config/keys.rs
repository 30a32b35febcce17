//! Every key of a configuration: what its value must be, and an example of one.

/// A key, as it is called in messages, in the environment and in the file.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// What a value must be, in words.
    pub(super) must_be: &'static str,
    /// A value that would do, as it is written in the file.
    pub(super) such_as: &'static str,
}

const fn key(name: &'static str, must_be: &'static str, such_as: &'static str) -> Key {
    Key { name, must_be, such_as }
}

/// Every key there is.
pub(super) const KEYS: &[Key] = &[
    key("admission.max_active_users", "a whole number, at least 1", "20000"),
    key("admission.resume_ratio", "a number above 0 and at most 1", "0.9"),
    key("admission.refill", "\"continuous\" or \"after-resume\"", "\"continuous\""),
    key("admission.enforcement", "\"enforce\", \"shadow\" or \"off\"", "\"shadow\""),
    key("admission.retry_after", "two times, min and max", "{ min = \"15s\", max = \"45s\" }"),
    key("admission.retry_after.min", A_TIME, "\"15s\""),
    key("admission.retry_after.max", A_TIME, "\"45s\""),
    key("admission.missing_token", "\"new-user\", \"admit\" or \"reject\"", "\"new-user\""),
    key("admission.exempt_paths", "a list of paths", "[\"/healthz\", \"/static/*\"]"),
    key("route.path", "a path, or a prefix that ends in /*", "\"/api/presence/*\""),
    key("route.class", "\"admit\", \"observe\", \"exempt\" or \"confirm\"", "\"observe\""),
    key("window.length", A_TIME, "\"30m\""),
    key("window.slots", "a whole number from 1 to 120", "30"),
    key("window.capacity", "a whole number, at least max_active_users", "65536"),
    key("window.false_positive_rate", "a number from 1e-6 to 0.1", "1e-3"),
    key(
        "token.from",
        "a list of \"bearer\", \"cookie:NAME\" and \"header:NAME\", of which one is usually enough",
        "[\"bearer\"]",
    ),
    key("token.on_conflict", "\"refuse\" or \"first\"", "\"refuse\""),
    key("token.secret_file", A_FILE, "\"/etc/headcount/fingerprint.key\""),
    key("token.secret", "text of at least 16 bytes", "\"at least 16 bytes that nobody can guess\""),
    key("token.earlier_secret_files", "a list of names of files", "[\"/etc/headcount/fingerprint.key.1\"]"),
    key("token.jwt.keys", "a list of names of files", "[\"/etc/headcount/jwt.pem\"]"),
    key("token.jwt.jwks_url", "a URL that begins with https://", "\"https://login.example/.well-known/jwks.json\""),
    key("token.jwt.claim", "the name of a claim", "\"sub\""),
    key("token.jwt.issuer", "the issuer of the tokens", "\"https://login.example\""),
    key("token.jwt.audience", "a list of names", "[\"game\"]"),
    key("token.jwt.require_exp", TRUE_OR_FALSE, "true"),
    key("token.jwt.unverified", "\"reject\" or \"missing-token\"", "\"reject\""),
    key("pass.carry", "\"header\" or \"cookie:NAME\"", "\"cookie:pass\""),
    key("pass.secure", TRUE_OR_FALSE, "true"),
    key("limit.name", "a name that no other limit has", "\"login\""),
    key("limit.key", "whose requests are counted together", "\"client_ip\""),
    key("limit.on_missing_key", "\"shared\", \"deny\" or \"allow\"", "\"shared\""),
    key("limit.algorithm", "the name of an algorithm", "\"token_bucket\""),
    key("limit.rate", "permits per time", "\"20/s\""),
    key("limit.burst", "a whole number, at least 1", "40"),
    key("limit.warm_up", A_TIME, "\"10s\""),
    key("limit.max_wait", A_TIME, "\"50ms\""),
    key("limit.applies_to", "whom the limit concerns", "\"all\""),
    key("limit.routes", "a list of paths", "[\"/login\", \"/api/auth/*\"]"),
    key("limit.store", "the name of a store", "\"memory\""),
    key("limit.max_keys", "a whole number, at least 1", "1000000"),
    key("limit.within", A_TIME, "\"50ms\""),
    key("limit.zone", "a whole number that no other limit has", "1"),
    key("limit.on_store_error", "\"allow\", \"deny\" or \"local\"", "\"local\""),
    key("limit.shadow", TRUE_OR_FALSE, "true"),
    key("postgres.url", "a URL that begins with postgres://", "\"postgres://user:password@127.0.0.1/app\""),
    key("mysql.url", "a URL that begins with mysql://", "\"mysql://user:password@127.0.0.1/app\""),
    key("redis.url", "a URL that begins with redis:// or rediss://", "\"redis://127.0.0.1:6379/0\""),
    key("redis.ca_file", A_FILE, "\"/etc/headcount/ca.pem\""),
    key("redis.cert_file", A_FILE, "\"/etc/headcount/client.pem\""),
    key("redis.key_file", A_FILE, "\"/etc/headcount/client.key\""),
    key("redis.namespace", "a name of 1 to 64 of the characters A-Z a-z 0-9 - _ .", "\"default\""),
    key("redis.sync_every", A_TIME, "\"1s\""),
    key("redis.on_outage", "\"local\", \"open\" or \"closed\"", "\"local\""),
    key("fleet.expected_nodes", "a whole number, at least 1", "8"),
    key("snapshot.file", "the name of a file, or \"\" for none", "\"/var/lib/headcount/ring.snapshot\""),
    key("server.listen", AN_ADDRESS, "\"127.0.0.1:7070\""),
    key("server.node", "a name", "\"eu-1\""),
    key("server.trusted_proxies", "a list of addresses and networks", "[\"127.0.0.1\", \"10.0.0.0/8\"]"),
    key("admin.listen", AN_ADDRESS, "\"127.0.0.1:7071\""),
    key("admin.token_file", A_FILE, "\"/etc/headcount/admin.token\""),
    key("admin.hosts", "a list of host names", "[\"headcount.internal\"]"),
    key("admin.open_metrics", TRUE_OR_FALSE, "true"),
    key("admin.allow_proxied", TRUE_OR_FALSE, "false"),
];

pub(super) const A_TIME: &str = "a number and its unit (ms, s, m, h or d) in quotes";
const A_FILE: &str = "the name of a file";
const AN_ADDRESS: &str = "an address and a port";
const TRUE_OR_FALSE: &str = "true or false, without quotes";

/// Sections that may be there more than once.
pub(super) const REPEATED: [&str; 2] = ["limit", "route"];

/// The key of a path such as `limit[0].rate` or `token.from[1]`.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    let name = without_places(path);
    KEYS.iter().find(|key| key.name == name)
}

/// Whether there are keys below it.
pub(super) fn is_section(name: &str) -> bool {
    below(name).next().is_some()
}

/// The keys and sections one step below a section, or of the root (`""`).
pub(super) fn members(section: &str) -> Vec<&'static str> {
    let mut members = Vec::new();
    for rest in below(section) {
        let member = rest.split('.').next().unwrap_or_default();
        if !members.contains(&member) {
            members.push(member);
        }
    }
    members
}

fn below(section: &str) -> impl Iterator<Item = &'static str> {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    KEYS.iter().filter_map(move |key| key.name.strip_prefix(prefix.as_str()))
}

/// Whether a value there may be secret, or hold what is.
pub(super) fn holds_secret(path: &str) -> bool {
    let name = without_places(path);
    ["redis", "postgres", "mysql", "token", "token.secret", "token.jwt", "token.jwt.jwks_url"].contains(&name.as_str())
        || name.ends_with(".url")
}

/// The key of a section that was probably meant.
pub(super) fn nearest(section: &str, name: &str) -> Option<&'static str> {
    let likeness =
        |known: &str| strsim::jaro_winkler(name, known).max(strsim::normalized_damerau_levenshtein(name, known));
    let known = members(section).into_iter().map(|known| (likeness(known), known));
    let (likeness, nearest) = known.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness >= 0.7).then_some(nearest)
}

/// The whole name of the key that is called like this in some section.
pub(super) fn elsewhere(name: &str) -> Option<&'static str> {
    KEYS.iter().map(|key| key.name).find(|known| known.rsplit('.').next() == Some(name))
}

/// `limit[0].rate` → `limit.rate`
pub(super) fn without_places(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|&c| {
            inside = c == '[' || inside && c != ']';
            !inside && c != ']'
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_is_recognized_in_its_own_section() {
        for (section, name, meant) in [
            ("", "adminn", Some("admin")),
            ("", "admision", Some("admission")),
            ("admission", "max_active_user", Some("max_active_users")),
            ("admission", "max_users", Some("max_active_users")),
            ("redis", "uri", Some("url")),
            ("limit", "rout", Some("routes")),
            ("window", "colour", None),
        ] {
            assert_eq!(nearest(section, name), meant, "{section} {name}");
        }
        assert_eq!(elsewhere("max_active_users"), Some("admission.max_active_users"));
    }

    #[test]
    fn names_of_keys_have_no_places() {
        assert_eq!(without_places("limit[12].routes[0]"), "limit.routes");
        assert!(find("limit[0].rate").is_some() && is_section("token.jwt") && !is_section("token.from"));
        assert_eq!(members("postgres"), ["url"]);
    }
}
