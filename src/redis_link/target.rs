//! Reads `[redis]`: which servers there are, and how to log in to them.

use super::address::Address;
use super::dial::Dialer;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::config::{self, ConfigError, Secret};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use std::path::{Path, PathBuf};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The server of a `[redis]` that names none.
const LOCAL: &str = "redis://127.0.0.1:6379/0";

/// The servers that `[redis]` names.
pub(super) enum Target {
    One { server: Address, dialer: Dialer },
    Sentinels { sentinels: Vec<Address>, to_sentinels: Dialer, master: String, dialer: Dialer },
    Cluster { nodes: Vec<Address>, dialer: Dialer },
}

/// The kind of servers, and their names, before certificates are read.
enum Servers {
    One(Address),
    Sentinels(Vec<Address>, String),
    Cluster(Vec<Address>),
}

/// What a URL, or the keys that replace it, say of the servers.
struct Said {
    servers: Servers,
    login: RedisConnectionInfo,
    has_tls: bool,
}

impl Target {
    /// Reads the URL or the lists of servers, the passwords and the certificates. Does not connect.
    ///
    /// # Errors
    /// [`ConfigError`] names the key or the file, and what is allowed.
    pub(super) fn read(config: &config::Redis) -> Result<Self, ConfigError> {
        let Said { servers, login, has_tls } = match &config.url {
            Some(url) => of_url(config, url)?,
            None if config.sentinels.is_empty() && config.cluster.is_empty() => of_url(config, &Secret::new(LOCAL))?,
            None => of_lists(config)?,
        };
        if !has_tls && !config.sentinel_tls {
            refuse_needless_certificates(config)?;
        }
        let servers_of = match &servers {
            Servers::One(_) => "redis.url",
            Servers::Sentinels(..) => "redis.sentinels",
            Servers::Cluster(_) => "redis.cluster",
        };
        let dialer = dialer(config, login, has_tls, servers_of)?;
        Ok(match servers {
            Servers::One(server) => {
                refuse_names(&dialer, std::slice::from_ref(&server), servers_of)?;
                Self::One { server, dialer }
            }
            Servers::Cluster(nodes) => {
                refuse_names(&dialer, &nodes, servers_of)?;
                Self::Cluster { nodes, dialer }
            }
            Servers::Sentinels(sentinels, master) => {
                let password = config.sentinel_password_file.as_deref();
                let login = login_of(config.sentinel_user.as_deref(), password, "redis.sentinel_password_file")?;
                let to_sentinels = self::dialer(config, login, config.sentinel_tls, "redis.sentinels")?;
                refuse_names(&to_sentinels, &sentinels, "redis.sentinels")?;
                Self::Sentinels { sentinels, to_sentinels, master, dialer }
            }
        })
    }
}

fn of_url(config: &config::Redis, url: &Secret) -> Result<Said, ConfigError> {
    for (key, is_set) in [
        ("redis.sentinels", !config.sentinels.is_empty()),
        ("redis.master", config.master.is_some()),
        ("redis.cluster", !config.cluster.is_empty()),
        ("redis.database", config.database != 0),
        ("redis.user", config.user.is_some()),
        ("redis.password_file", config.password_file.is_some()),
        ("redis.tls", config.tls),
    ] {
        if is_set && config.url.is_some() {
            let why = format!(
                "is set, and so is redis.url, {}, which says the same: leave one of them out",
                url.redacted_url()
            );
            return Err(ConfigError::Redis { key, why });
        }
        if is_set {
            let why = "needs redis.sentinels or redis.cluster. For one server, write it into redis.url: \
                       redis://user:password@host:6379/0, or rediss:// for TLS";
            return Err(ConfigError::Redis { key, why: why.into() });
        }
    }
    let refused = |why: String| ConfigError::RedisUrl { found: url.redacted_url(), why };
    let text = url.expose();
    if text.contains('#') {
        // The client library would take `#insecure` as a request to skip verification.
        return Err(refused(
            "nothing may follow a #. Certificates are always verified: for an authority of your own, \
             set redis.ca_file. In a password, # is written %23"
                .into(),
        ));
    }
    let scheme = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if cfg!(not(feature = "tls")) && (scheme.starts_with("rediss") || scheme.starts_with("valkeys")) {
        return Err(ConfigError::Feature { key: "redis.url", feature: "tls" });
    }
    match scheme.as_str() {
        "redis-sentinel" | "rediss-sentinel" => of_url_of_many(text, &scheme).map_err(refused),
        "redis-cluster" | "rediss-cluster" => {
            needs_sentinels(config)?;
            of_url_of_many(text, &scheme).map_err(refused)
        }
        _ => {
            needs_sentinels(config)?;
            refuse_unknown_queries(text, &scheme).map_err(refused)?;
            let info = text.into_connection_info().map_err(|error| refused(error.to_string()))?;
            let (server, has_tls) = match info.addr().clone() {
                ConnectionAddr::Tcp(host, port) => (Address::Tcp(host, port), false),
                ConnectionAddr::TcpTls { host, port, .. } => (Address::Tcp(host, port), true),
                ConnectionAddr::Unix(path) => (Address::Unix(path), false),
                other => return Err(refused(format!("{other} is not an address that headcount can connect to"))),
            };
            Ok(Said { servers: Servers::One(server), login: info.redis_settings().clone(), has_tls })
        }
    }
}

/// Refuses what the client library would pass over in silence, such as `?ssl=true`.
fn refuse_unknown_queries(url: &str, scheme: &str) -> Result<(), String> {
    let known: &[&str] = if scheme.ends_with("unix") { &["protocol", "db", "user", "pass"] } else { &["protocol"] };
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let is_unknown = |pair: &&str| !known.contains(&pair.split('=').next().unwrap_or_default());
    if query.split('&').filter(|pair| !pair.is_empty()).any(|pair| is_unknown(&pair)) {
        let known = known.join(", ");
        return Err(format!(
            "after ? only these names are known: {known}. For TLS, write rediss:// in place of redis://"
        ));
    }
    Ok(())
}

/// Reads `redis-sentinel://user:password@host:port,host:port/database?sentinelMasterId=name`, as Lettuce (the Java
/// client) documents it, and `redis-cluster://user:password@host:port,host:port`.
fn of_url_of_many(url: &str, scheme: &str) -> Result<Said, String> {
    let (_, rest) = url.split_once("://").ok_or("// is missing after the scheme")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (credentials, rest) = rest.rsplit_once('@').map_or(("", rest), |(credentials, rest)| (credentials, rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_cluster = scheme.ends_with("-cluster");
    let port = if is_cluster { REDIS_PORT } else { SENTINEL_PORT };
    let hosts = hosts.split(',').map(|host| Address::read(host, port)).collect::<Result<Vec<_>, _>>()?;
    let at = if credentials.is_empty() { "" } else { "@" };
    // The client library decodes the user, the password and the number of the database.
    let login = format!("redis://{credentials}{at}host/{path}").into_connection_info();
    let login = login.map_err(|error| error.to_string())?.redis_settings().clone();
    let mut master = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinelMasterId", name)) if !is_cluster && !name.is_empty() => master = Some(name.to_owned()),
            _ => return Err("of the part after ?, only sentinelMasterId=name of Sentinels is known".into()),
        }
    }
    let servers = match (is_cluster, master) {
        (true, _) if login.db() != 0 => return Err("a Redis Cluster has no database but 0".into()),
        (true, _) => Servers::Cluster(hosts),
        (false, Some(master)) => Servers::Sentinels(hosts, master),
        (false, None) => return Err("the name of the master is missing: add ?sentinelMasterId=name".into()),
    };
    Ok(Said { servers, login, has_tls: scheme.starts_with("rediss") })
}

fn of_lists(config: &config::Redis) -> Result<Said, ConfigError> {
    let addresses = |key, list: &[String], port| {
        let read = |text: &String| {
            let such = format!("Such as \"10.0.0.1:{port}\"");
            if text.contains('@') || text.contains("://") {
                // It may hold a password.
                let why =
                    format!("holds an entry that is not shown, with a scheme or a user: write hosts alone. {such}");
                return Err(ConfigError::Redis { key, why });
            }
            let refused = |why| ConfigError::Redis { key, why: format!("holds {text:?}: {why}. {such}") };
            Address::read(text, port).map_err(refused)
        };
        list.iter().map(read).collect::<Result<Vec<_>, _>>()
    };
    let mut login = login_of(config.user.as_deref(), config.password_file.as_deref(), "redis.password_file")?;
    let servers = if config.cluster.is_empty() {
        let Some(master) = config.master.clone().filter(|name| !name.trim().is_empty()) else {
            let why = "redis.sentinels are asked for a master by its name. It is in the line `sentinel monitor` of \
                       their configuration, such as mymaster";
            return Err(ConfigError::Missing { key: "redis.master", why });
        };
        login = login.set_db(i64::from(config.database));
        Servers::Sentinels(addresses("redis.sentinels", &config.sentinels, SENTINEL_PORT)?, master)
    } else {
        needs_sentinels(config)?;
        for (key, is_set) in [
            ("redis.sentinels", !config.sentinels.is_empty()),
            ("redis.master", config.master.is_some()),
            ("redis.database", config.database != 0),
        ] {
            if is_set {
                let why = "is set, and so is redis.cluster: a Redis Cluster has no Sentinels, no master of a name, and \
                           no database but 0";
                return Err(ConfigError::Redis { key, why: why.into() });
            }
        }
        Servers::Cluster(addresses("redis.cluster", &config.cluster, REDIS_PORT)?)
    };
    Ok(Said { servers, login, has_tls: config.tls })
}

/// Refuses keys of Sentinels where there are none.
fn needs_sentinels(config: &config::Redis) -> Result<(), ConfigError> {
    let keys = [
        ("redis.sentinel_user", config.sentinel_user.is_some()),
        ("redis.sentinel_password_file", config.sentinel_password_file.is_some()),
        ("redis.sentinel_tls", config.sentinel_tls),
    ];
    match keys.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(ConfigError::Redis { key, why: "is set, and there are no redis.sentinels".into() }),
        None => Ok(()),
    }
}

fn refuse_needless_certificates(config: &config::Redis) -> Result<(), ConfigError> {
    let files: [(&str, &Option<PathBuf>); 3] = [
        ("redis.ca_file", &config.ca_file),
        ("redis.cert_file", &config.cert_file),
        ("redis.key_file", &config.key_file),
    ];
    let Some((key, _)) = files.into_iter().find(|(_, file)| file.is_some()) else { return Ok(()) };
    let (servers, way_out) = match &config.url {
        Some(url) if url.expose().contains("-sentinel:") => (url.redacted_url(), "write rediss-sentinel:// there"),
        Some(url) if url.expose().contains("-cluster:") => (url.redacted_url(), "write rediss-cluster:// there"),
        Some(url) => (url.redacted_url(), "write rediss:// there"),
        None if config.sentinels.is_empty() && config.cluster.is_empty() => (LOCAL.into(), "write rediss:// there"),
        None => ("a list".into(), "set redis.tls = true"),
    };
    let key_of_servers = if config.url.is_some() || servers == LOCAL {
        "redis.url"
    } else if config.cluster.is_empty() {
        "redis.sentinels"
    } else {
        "redis.cluster"
    };
    let why =
        format!("is set, and {key_of_servers} is {servers}, which is not encrypted: {way_out}, or leave {key} out");
    Err(ConfigError::Redis { key, why })
}

/// Returns the login of a user with the password in a file.
fn login_of(
    user: Option<&str>,
    password: Option<&Path>,
    key: &'static str,
) -> Result<RedisConnectionInfo, ConfigError> {
    let mut login = RedisConnectionInfo::default();
    if let Some(file) = password {
        let unreadable = |source| ConfigError::Unreadable { key, file: file.to_owned(), source };
        let bytes = std::fs::read_to_string(file).map_err(unreadable)?;
        let password = bytes.strip_suffix("\r\n").or(bytes.strip_suffix('\n')).unwrap_or(&bytes);
        if password.is_empty() {
            return Err(ConfigError::Redis { key, why: format!("names {}, which is empty", file.display()) });
        }
        login = login.set_password(password);
    } else if user.is_some() {
        return Err(ConfigError::Missing { key, why: "a user needs a password" });
    }
    Ok(match user {
        Some(user) => login.set_username(user),
        None => login,
    })
}

#[cfg(feature = "tls")]
fn dialer(
    config: &config::Redis,
    login: RedisConnectionInfo,
    has_tls: bool,
    _: &'static str,
) -> Result<Dialer, ConfigError> {
    let tls = has_tls.then(|| Tls::read(config)).transpose()?;
    Ok(Dialer::new(login, tls))
}

#[cfg(not(feature = "tls"))]
fn dialer(
    _: &config::Redis,
    login: RedisConnectionInfo,
    has_tls: bool,
    key: &'static str,
) -> Result<Dialer, ConfigError> {
    if has_tls {
        return Err(ConfigError::Feature { key, feature: "tls" });
    }
    Ok(Dialer::new(login))
}

/// Refuses addresses that no certificate can name, if the connections use TLS.
fn refuse_names(dialer: &Dialer, servers: &[Address], key: &'static str) -> Result<(), ConfigError> {
    let nameless = servers.iter().filter_map(Address::host).find(|host| !dialer.can_name(host));
    match nameless {
        Some(host) => {
            let why = format!("holds {host:?}, which is not a name that a certificate can contain");
            Err(ConfigError::Redis { key, why })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Target, ConfigError> {
        let redis: config::Redis = toml_like(text);
        Target::read(&redis)
    }

    /// Reads `key = value` lines; lists are separated by commas.
    fn toml_like(text: &str) -> config::Redis {
        let mut redis = config::Redis::default();
        for (key, value) in text.lines().filter_map(|line| line.trim().split_once(" = ")) {
            let list = || value.split(", ").map(str::to_owned).collect();
            match key {
                "url" => redis.url = Some(Secret::new(value)),
                "sentinels" => redis.sentinels = list(),
                "master" => redis.master = Some(value.into()),
                "cluster" => redis.cluster = list(),
                "database" => redis.database = value.parse().unwrap(),
                "user" => redis.user = Some(value.into()),
                "password_file" => redis.password_file = Some(value.into()),
                "tls" => redis.tls = value == "true",
                "sentinel_user" => redis.sentinel_user = Some(value.into()),
                "sentinel_tls" => redis.sentinel_tls = value == "true",
                "ca_file" => redis.ca_file = Some(value.into()),
                _ => panic!("{key}"),
            }
        }
        redis
    }

    #[test]
    fn the_servers_are_named_by_a_url_or_by_lists() {
        let shown = |text| match of(text).unwrap() {
            Target::One { server, .. } => format!("one {server}"),
            Target::Sentinels { sentinels, master, .. } => {
                let sentinels: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                format!("{master} of {}", sentinels.join(" "))
            }
            Target::Cluster { nodes, .. } => {
                format!("cluster {}", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
        };
        for (text, servers) in [
            ("", "one 127.0.0.1:6379"),
            ("url = valkey://host", "one host:6379"),
            ("url = redis+unix:///run/redis.sock", "one /run/redis.sock"),
            ("sentinels = a, b:1\nmaster = m\ndatabase = 3", "m of a:26379 b:1"),
            ("cluster = a, [::1]:7000", "cluster a:6379 [::1]:7000"),
            ("url = redis-sentinel://:p%40ss@a,b:1,[::1]/3?sentinelMasterId=m", "m of a:26379 b:1 [::1]:26379"),
            ("url = REDIS-CLUSTER://user:pw@a,b:7000", "cluster a:6379 b:7000"),
        ] {
            assert_eq!(shown(text), servers, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_the_key_and_the_way_out() {
        for (text, key, words) in [
            ("sentinels = a", "redis.master", "`sentinel monitor`"),
            ("sentinels = a\nmaster = ", "redis.master", "`sentinel monitor`"),
            ("sentinels = a:x\nmaster = m", "redis.sentinels", "the port is a number from 1 to 65535. Such as"),
            ("cluster = redis://a", "redis.cluster", "Such as \"10.0.0.1:6379\""),
            ("url = redis://a\nsentinels = a", "redis.sentinels", "leave one of them out"),
            ("url = redis://a\ncluster = a", "redis.cluster", "leave one of them out"),
            ("url = redis://a\ntls = true", "redis.tls", "leave one of them out"),
            ("master = m", "redis.master", "needs redis.sentinels or redis.cluster"),
            ("tls = true", "redis.tls", "rediss:// for TLS"),
            ("cluster = a\nsentinels = b", "redis.sentinels", "has no Sentinels"),
            ("cluster = a\ndatabase = 1", "redis.database", "no database but 0"),
            ("cluster = a\nsentinel_user = u", "redis.sentinel_user", "there are no redis.sentinels"),
            ("sentinel_tls = true", "redis.sentinel_tls", "there are no redis.sentinels"),
            ("url = redis-cluster://a\nsentinel_tls = true", "redis.sentinel_tls", "there are no redis.sentinels"),
            ("cluster = a\nuser = u", "redis.password_file", "a user needs a password"),
            ("cluster = a\npassword_file = /nowhere", "redis.password_file", "/nowhere, which cannot be used"),
            ("cluster = a\nca_file = /nowhere", "redis.ca_file", "set redis.tls = true, or leave redis.ca_file out"),
            ("url = redis-cluster://a\nca_file = /nowhere", "redis.ca_file", "write rediss-cluster:// there"),
            ("url = redis-sentinel://a", "redis.url", "add ?sentinelMasterId=name"),
            ("url = redis-sentinel://a?sentinelMasterId=", "redis.url", "only sentinelMasterId=name"),
            ("url = redis-cluster://a?x=y", "redis.url", "only sentinelMasterId=name"),
            ("url = redis-cluster://a/1", "redis.url", "no database but 0"),
            ("url = redis-cluster://", "redis.url", "no host name"),
            ("url = redis-sentinel://canary@a:b,c?sentinelMasterId=m", "redis.url", "from 1 to 65535"),
        ] {
            let Err(error) = of(text) else { panic!("{text} is accepted") };
            let said = error.to_string();
            assert!(error.key() == key && said.contains(words), "{text}: {} {said}", error.key());
            assert!(!said.contains("canary"), "{said}");
        }
    }
}
