//! Where the configuration comes from: flag beats environment beats file beats default.

use crate::config::{Config, ConfigError};
use config::{FileFormat, Format, Map, Source, Value, ValueKind};
use std::fmt;
use std::path::{Path, PathBuf};

/// Environment variables are `HEADCOUNT__SECTION__KEY`; with single underscores, Kubernetes would inject `HEADCOUNT_PORT`.
const ENVIRONMENT: &str = "HEADCOUNT__";

/// Every key there is.
const KEYS: [&str; 64] = [
    "admission.max_active_users",
    "admission.resume_ratio",
    "admission.refill",
    "admission.enforcement",
    "admission.retry_after",
    "admission.retry_after.min",
    "admission.retry_after.max",
    "admission.missing_token",
    "admission.exempt_paths",
    "route.path",
    "route.class",
    "window.length",
    "window.slots",
    "window.capacity",
    "window.false_positive_rate",
    "token.from",
    "token.on_conflict",
    "token.secret_file",
    "token.secret",
    "token.earlier_secret_files",
    "token.jwt",
    "token.jwt.keys",
    "token.jwt.jwks_url",
    "token.jwt.claim",
    "token.jwt.issuer",
    "token.jwt.audience",
    "token.jwt.require_exp",
    "token.jwt.unverified",
    "pass.carry",
    "pass.secure",
    "limit.name",
    "limit.key",
    "limit.algorithm",
    "limit.rate",
    "limit.burst",
    "limit.warm_up",
    "limit.max_wait",
    "limit.applies_to",
    "limit.routes",
    "limit.store",
    "limit.max_keys",
    "limit.within",
    "limit.zone",
    "limit.on_store_error",
    "limit.shadow",
    "postgres.url",
    "mysql.url",
    "redis.url",
    "redis.ca_file",
    "redis.cert_file",
    "redis.key_file",
    "redis.namespace",
    "redis.sync_every",
    "redis.on_outage",
    "fleet.expected_nodes",
    "snapshot.file",
    "server.listen",
    "server.node",
    "server.trusted_proxies",
    "admin.listen",
    "admin.token_file",
    "admin.hosts",
    "admin.open_metrics",
    "admin.allow_proxied",
];

/// Keys whose environment variable is a list, divided by commas.
const LISTS: [&str; 7] = [
    "admission.exempt_paths",
    "token.from",
    "token.jwt.keys",
    "token.jwt.audience",
    "token.earlier_secret_files",
    "server.trusted_proxies",
    "admin.hosts",
];

/// A configuration, and where each of its values came from.
pub struct Loaded {
    /// The values.
    pub config: Config,
    sources: config::Config,
    file: Option<PathBuf>,
}

/// What flags set: a key and its value.
pub type Flags = Vec<(&'static str, String)>;

/// Why there is no configuration.
#[derive(Debug)]
pub enum LoadError {
    /// A file that cannot be read, no TOML, or a value of another type.
    Source {
        /// The file or variable, if the error itself does not name it.
        origin: Option<String>,
        /// What is wrong.
        error: Box<config::ConfigError>,
    },
    /// Keys that do not exist.
    Unknown {
        /// The key.
        key: String,
        /// The file or variable that holds it.
        origin: String,
    },
    /// A section without a key that it needs.
    Missing {
        /// The key.
        key: String,
        /// The file that holds the section.
        origin: String,
    },
    /// A value outside its bounds.
    Bound {
        /// The file, variable or flag that holds it.
        origin: String,
        /// What is wrong with it.
        error: ConfigError,
    },
}

/// Reads the configuration.
///
/// # Errors
/// [`LoadError`] names the file or variable, the key, what was found, and what would do.
pub fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: Flags,
) -> Result<Loaded, LoadError> {
    let mut builder = config::Config::builder();
    if let Some(file) = file {
        builder = builder.add_source(Document::read(file)?);
    }
    let variables = environment.filter_map(|(name, value)| {
        let key = name.strip_prefix(ENVIRONMENT)?.replace("__", ".").to_ascii_lowercase();
        Some((key, format!("the environment variable {name}"), value))
    });
    let flags = flags.into_iter().map(|(key, value)| (key.to_owned(), "the command line".to_owned(), value));
    for (key, origin, text) in variables.chain(flags) {
        if !KEYS.contains(&key.as_str()) {
            return Err(LoadError::Unknown { key, origin });
        }
        builder = builder.set_override(&key, value(&key, &origin, &text)).map_err(unreadable)?;
    }
    let sources = builder.build().map_err(unreadable)?;
    let mut unknown = None;
    let config = serde_ignored::deserialize(sources.clone(), |path| {
        // Sections that may be absent stand in the path as a question mark.
        unknown.get_or_insert_with(|| without_places(&path.to_string().replace(".?", "")));
    });
    let config = config.map_err(|error| match error {
        // `limit[0]rate`: the library leaves the dot out.
        config::ConfigError::NotFound(key) => LoadError::Missing {
            origin: origin(&sources, key.split(['[', '.']).next().unwrap_or_default())
                .or(shown(file))
                .unwrap_or_default(),
            key: key.replace(']', "].").replace("..", "."),
        },
        error => mistyped(&sources, error),
    })?;
    if let Some(key) = unknown {
        let origin = origin(&sources, &key).or(shown(file)).unwrap_or_default();
        return Err(LoadError::Unknown { key, origin });
    }
    Ok(Loaded { config, sources, file: file.map(Path::to_owned) })
}

/// A file's values, each with the file's name as it was given: the library would make it relative to where we stand.
#[derive(Debug, Clone)]
struct Document(Map<String, Value>);

impl Document {
    fn read(file: &Path) -> Result<Self, LoadError> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(Into::into);
        let values = text.and_then(|text| {
            check_syntax(&text)?;
            FileFormat::Toml.parse(Some(&name), &text)
        });
        values.map(Self).map_err(|cause| LoadError::Source {
            origin: Some(name),
            error: Box::new(config::ConfigError::Foreign(cause)),
        })
    }
}

/// Says where a file is no TOML. The library's own words quote the line, which may hold a secret.
fn check_syntax(text: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let Err(error) = toml::from_str::<toml::Table>(text) else { return Ok(()) };
    let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
    let (line, column) =
        (before.matches('\n').count() + 1, before.chars().rev().take_while(|&c| c != '\n').count() + 1);
    Err(format!("it is no TOML: line {line}, column {column}: {}", error.message()).into())
}

impl Source for Document {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

impl Loaded {
    /// Says where a value that was refused came from.
    pub fn locate(&self, error: ConfigError) -> LoadError {
        let origin = origin(&self.sources, error.key()).or(shown(self.file.as_deref()));
        LoadError::Bound { origin: origin.unwrap_or_else(|| "no configuration file".into()), error }
    }
}

fn unreadable(error: config::ConfigError) -> LoadError {
    LoadError::Source { origin: None, error: Box::new(error) }
}

/// Errors from within a value know their key and not always where it stands.
fn mistyped(sources: &config::Config, error: config::ConfigError) -> LoadError {
    let origin = match &error {
        // An item of a list is named by its place.
        config::ConfigError::At { origin: None, key: Some(key), .. } => {
            origin(sources, key.split('[').next().unwrap_or_default())
        }
        _ => None,
    };
    let error = without_secret(error);
    LoadError::Source { origin, error: Box::new(error) }
}

/// What was found where a secret belongs, or a section that holds one, is not shown.
fn without_secret(error: config::ConfigError) -> config::ConfigError {
    const HIDDEN: &str = "what is there is of another type, and is not shown";
    match error {
        config::ConfigError::Type { origin, key: Some(key), .. }
        | config::ConfigError::At { origin, key: Some(key), .. }
            if holds_secret(&key) =>
        {
            let error = Box::new(config::ConfigError::Message(HIDDEN.into()));
            config::ConfigError::At { error, origin, key: Some(key) }
        }
        other => other,
    }
}

fn holds_secret(key: &str) -> bool {
    ["redis", "postgres", "mysql", "token", "token.secret", "token.jwt", "token.jwt.jwks_url"].contains(&key)
        || key.ends_with(".url")
}

fn value(key: &str, origin: &String, text: &str) -> Value {
    if !LISTS.contains(&key) {
        return Value::new(Some(origin), text);
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Value::new(Some(origin), items.map(|item| Value::new(Some(origin), item)).collect::<Vec<_>>())
}

fn origin(sources: &config::Config, key: &str) -> Option<String> {
    let value = key.split('.').try_fold(&sources.cache, |value, segment| match &value.kind {
        ValueKind::Table(table) => table.get(segment),
        _ => None,
    });
    value?.origin().map(str::to_owned)
}

fn shown(file: Option<&Path>) -> Option<String> {
    file.map(|file| file.display().to_string())
}

/// The key of an item in a list of sections, without its place in the list.
fn without_places(key: &str) -> String {
    key.split('.').filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".")
}

/// The key that was probably meant.
fn nearest(key: &str) -> &'static str {
    let likeness =
        |known: &str| strsim::jaro_winkler(key, known).max(strsim::normalized_damerau_levenshtein(key, known));
    KEYS.into_iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other))).unwrap_or(KEYS[0])
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { origin: Some(origin), error } => write!(f, "{origin}: {error}"),
            Self::Source { origin: None, error } => error.fmt(f),
            Self::Unknown { key, origin } => {
                write!(f, "{origin}: there is no key {key}; the nearest is {}", nearest(key))
            }
            Self::Missing { key, origin } => write!(f, "{origin}: {key} is missing"),
            Self::Bound { origin, error } => write!(f, "{origin}: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Enforcement, LimitStore, Unverified};
    use std::time::Duration;

    const EXAMPLE: &str = r#"
        [admission]
        max_active_users = 20000
        resume_ratio     = 0.90
        refill           = "continuous"
        enforcement      = "shadow"
        retry_after      = { min = "15s", max = "45s" }
        missing_token    = "new-user"
        exempt_paths     = ["/healthz"]
        [[route]]
        path  = "/api/presence/*"
        class = "observe"
        [window]
        length   = "30m"
        slots    = 30
        capacity = 65536
        false_positive_rate = 1e-3
        [token]
        from = ["bearer", "cookie:session", "header:X-Access-Token"]
        on_conflict = "first"
        secret_file = "/etc/headcount/fingerprint.key"
        earlier_secret_files = ["/etc/headcount/fingerprint.key.1"]
        [pass]
        carry = "header"
        secure = true
        [token.jwt]
        keys     = ["/etc/headcount/jwt.pem"]
        jwks_url = "https://login.example/.well-known/jwks.json"
        claim    = "sub"
        require_exp = false
        unverified = "missing-token"
        [[limit]]
        name      = "login"
        key       = "client_ip"
        algorithm = "sliding_log"
        rate      = "5/1m"
        burst     = 5
        max_wait  = "0s"
        applies_to = "all"
        routes    = ["/login", "/api/auth/*"]
        store     = "redis"
        on_store_error = "allow"
        shadow    = false
        [postgres]
        url = "postgres://limits:canary@127.0.0.1/app"
        [mysql]
        url = "mysql://limits:canary@127.0.0.1/app"
        [redis]
        url = "redis://127.0.0.1:6379/0"
        namespace  = "default"
        sync_every = "1s"
        on_outage  = "local"
        [fleet]
        expected_nodes = 8
        [snapshot]
        file = "/var/lib/headcount/ring.snapshot"
        [server]
        listen = "127.0.0.1:7070"
        node   = "gs-7f2"
        trusted_proxies = []
        [admin]
        listen = "127.0.0.1:7071"
        token_file = "/etc/headcount/admin.token"
    "#;

    fn load_text(text: &str, environment: &[(&str, &str)], flags: Flags) -> Result<Loaded, LoadError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("headcount.toml");
        std::fs::write(&file, text).unwrap();
        let environment = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        load(Some(&file), environment, flags)
    }

    fn complaint(text: &str) -> String {
        load_text(text, &[], vec![]).map(|loaded| loaded.config).unwrap_err().to_string()
    }

    #[test]
    fn the_example_of_the_contract_is_read() {
        let config = load_text(EXAMPLE, &[], vec![]).unwrap().config;
        assert_eq!(config.admission.max_active_users, Some(20_000));
        assert_eq!(config.admission.enforcement, Enforcement::Shadow);
        assert_eq!(config.redis.unwrap().sync_every, Some(Duration::from_secs(1)));
        assert_eq!(config.admin.token_file.unwrap(), Path::new("/etc/headcount/admin.token"));
    }

    #[test]
    fn a_file_is_called_what_it_was_called() {
        let directory = tempfile::tempdir().unwrap();
        let complaint = |name: &str, bytes: &[u8]| {
            let file = directory.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            let error =
                load(Some(&file), std::iter::empty(), vec![]).map(|loaded| loaded.config).unwrap_err().to_string();
            let name = format!("{}: ", file.display());
            error.strip_prefix(&name).unwrap_or_else(|| panic!("{error:?} begins with {name:?}")).to_owned()
        };
        assert!(
            complaint("unknown", b"[admission]\nmax_users = 5").contains("the nearest is admission.max_active_users")
        );
        assert!(complaint("of another type", b"[admission]\nmax_active_users = 'x'").contains("a whole number"));
        assert!(complaint("no TOML", b"[admission]\nmax_active_users = 5 5").contains("line 2, column 20"));
        assert!(complaint("no text", b"\xff").contains("UTF-8"));
        let (directory, gone) = (directory.path(), directory.path().join("gone"));
        for (file, what) in [(directory, "directory"), (&gone, "No such file")] {
            let error =
                load(Some(file), std::iter::empty(), vec![]).map(|loaded| loaded.config).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: ", file.display())) && error.contains(what), "{error}");
        }
    }

    #[test]
    fn flag_beats_environment_beats_file() {
        let x = "admission.max_active_users";
        let variable = ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "30");
        let max = |environment: &[(&str, &str)], flags| {
            load_text(EXAMPLE, environment, flags).unwrap().config.admission.max_active_users
        };
        assert_eq!(max(&[], vec![]), Some(20_000));
        assert_eq!(max(&[variable], vec![]), Some(30));
        assert_eq!(max(&[variable], vec![(x, "40".into())]), Some(40));
    }

    #[test]
    fn every_key_can_be_set_from_the_environment() {
        let environment = [
            ("HEADCOUNT__ADMISSION__RETRY_AFTER__MIN", "1s"),
            ("HEADCOUNT__TOKEN__FROM", "cookie:sid, bearer"),
            ("HEADCOUNT__TOKEN__SECRET", "0123456789012345"),
            ("HEADCOUNT__ADMIN__OPEN_METRICS", "true"),
            ("HEADCOUNT__SNAPSHOT__FILE", ""),
            ("HEADCOUNT_PORT", "tcp://10.0.0.1:80"),
            ("HEADCOUNTING", "x"),
        ];
        let config = load_text("", &environment, vec![]).unwrap().config;
        assert_eq!(config.admission.retry_after.min, Duration::from_secs(1));
        assert_eq!(config.admission.retry_after.max, Duration::from_secs(45));
        assert_eq!(config.token.from.iter().map(ToString::to_string).collect::<Vec<_>>(), ["cookie:sid", "bearer"]);
        assert_eq!(config.token.secret.unwrap().expose(), "0123456789012345");
        assert!(config.admin.open_metrics);
        assert_eq!(config.snapshot.file.unwrap(), Path::new(""));
    }

    #[test]
    fn an_unknown_key_names_the_nearest_one() {
        let error = complaint("[admission]\nmax_active_user = 5");
        assert!(error.contains("headcount.toml: there is no key admission.max_active_user;"), "{error}");
        assert!(error.ends_with("the nearest is admission.max_active_users"), "{error}");
        assert!(complaint("[redis]\nuri = 'x'").ends_with("the nearest is redis.url"));
        assert!(
            complaint("[[route]]\npath = '/x'\nclass = 'admit'\nclas = 'x'")
                .ends_with("route.clas; the nearest is route.class")
        );
        assert!(complaint("[admision]\nresume_ratio = 1").contains("no key admision"));
        let variable = [("HEADCOUNT__WINDOW__SLOT", "30")];
        let error = load_text("", &variable, vec![]).map(|loaded| loaded.config).unwrap_err().to_string();
        assert!(
            error.starts_with("the environment variable HEADCOUNT__WINDOW__SLOT: there is no key window.slot;"),
            "{error}"
        );
    }

    #[test]
    fn a_value_of_another_type_names_file_key_and_what_was_found() {
        for (text, parts) in [
            ("[admission]\nmax_active_users = 'many'", ["many", "admission.max_active_users", "headcount.toml"]),
            ("[admission]\nmax_active_users = -1", ["-1", "admission.max_active_users", "headcount.toml"]),
            ("[admission]\nmax_active_users = 1.5", ["1.5", "admission.max_active_users", "headcount.toml"]),
            ("[window]\nslots = 99999999999", ["99999999999", "window.slots", "headcount.toml"]),
            ("[admission]\nrefill = 'never'", ["never", "admission.refill", "headcount.toml"]),
            ("[[route]]\npath = '/x'\nclass = 'none'", ["none", "class", "headcount.toml"]),
            ("[window]\nlength = 'long'", ["length", "window.length", "headcount.toml"]),
            ("[token]\nfrom = ['query:x']", ["query:x", "token.from", "headcount.toml"]),
            ("[server]\nlisten = 'here'", ["listen", "server.listen", "headcount.toml"]),
        ] {
            let error = complaint(text);
            for part in parts {
                assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
            }
        }
        assert!(complaint("[admission").contains("headcount.toml"));
    }

    #[test]
    fn a_bound_that_is_broken_by_the_environment_names_the_variable() {
        let variable = [("HEADCOUNT__ADMISSION__RESUME_RATIO", "1.5")];
        let loaded = load_text(EXAMPLE, &variable, vec![]).unwrap();
        let error = loaded.locate(ConfigError::ResumeRatio { found: 1.5 }).to_string();
        assert!(
            error.starts_with("the environment variable HEADCOUNT__ADMISSION__RESUME_RATIO: admission."),
            "{error}"
        );
    }

    #[test]
    fn the_list_of_keys_is_complete() {
        fn check(prefix: &str, section: &serde_json::Value) {
            for (key, value) in section.get(0).unwrap_or(section).as_object().into_iter().flatten() {
                let key = format!("{prefix}{key}");
                check(&format!("{key}."), value);
                let is_section =
                    !prefix.contains('.') && value.is_object() || value.get(0).is_some_and(|v| v.is_object());
                assert!(KEYS.contains(&key.as_str()) || is_section, "{key}");
            }
        }
        let loaded = load_text(EXAMPLE, &[], vec![]).unwrap();
        check("", &serde_json::to_value(&loaded.config).unwrap());
    }

    #[test]
    fn verified_tokens_and_limits_are_read() {
        let config = load_text(EXAMPLE, &[], vec![]).unwrap().config;
        let jwt = config.token.jwt.unwrap();
        assert_eq!((jwt.claim.as_str(), jwt.unverified), ("sub", Unverified::MissingToken));
        assert_eq!(config.limit.len(), 1);
        assert_eq!((config.limit[0].rate.permits, config.limit[0].store), (5, LimitStore::Redis));
        let environment = [("HEADCOUNT__TOKEN__JWT__KEYS", "/a.pem, /b.pem")];
        let jwt = load_text("", &environment, vec![]).unwrap().config.token.jwt.unwrap();
        assert_eq!(jwt.keys, [Path::new("/a.pem"), Path::new("/b.pem")]);
        for (text, parts) in [
            ("[[limit]]\nname = 'a'\nkey = 'path'\nrate = '1/s'", ["path", "no key of a limit"]),
            ("[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1'", ["\"1\"", "no rate"]),
            ("[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1/s'\nalgorithm = 'magic'", ["magic", "sliding_log"]),
            ("[[limit]]\nname = 'a'\nkey = 'token'", ["limit[0].rate is missing", "headcount.toml: "]),
            ("[mysql]", ["mysql.url is missing", "headcount.toml: "]),
            ("[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1/s'\nrout = ['/x']", ["limit.rout", "limit.routes"]),
        ] {
            let error = complaint(text);
            assert!(error.contains("headcount.toml"), "{error}");
            for part in parts {
                assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn no_message_holds_a_secret() {
        for (text, says) in [
            ("[redis]\nurl = \"redis://:canary@localhost\nnamespace = 'x'", "line 2, column"),
            ("[token]\nsecret = canary-canary-canary", "line 2, column"),
            ("[token]\nsecret = 'canary-canary-canary", "line 2, column"),
            ("secret = 'a'\n[token\nsecret = 'canary'", "line 2, column"),
            ("redis = 'redis://:canary@localhost'", "redis"),
            ("postgres = 'postgres://me:canary@localhost'", "postgres"),
            ("token = 'canary-canary-canary'", "token"),
            ("token.jwt = 'https://me:canary@login.example'", "token.jwt"),
            ("[redis]\nurl = ['redis://:canary@localhost']", "redis.url"),
            ("[redis]\nurl = { canary = 'redis://:canary@localhost' }", "redis.url"),
        ] {
            let error =
                load_text(text, &[], Flags::new()).err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
            assert!(error.contains(says) && !error.contains("canary"), "{text}: {error}");
        }
    }
}
