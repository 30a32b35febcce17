use super::tree::{parse_value, put};
use super::*;
use crate::config::{Enforcement, LimitStore, Unverified};
use serde::Deserialize;
use std::time::Duration;
use toml::Value;

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
    [fleet]
    namespace  = "default"
    sync_every = "1s"
    on_outage  = "local"
    expected_nodes = 8
    node   = "gs-7f2"
    [snapshot]
    file = "/var/lib/headcount/ring.snapshot"
    [server]
    listen = "127.0.0.1:7070"
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
    load(Some(&file), environment, flags, |_| Ok(()))
}

fn complaint(text: &str) -> String {
    load_text(text, &[], vec![]).map(|loaded| loaded.config).unwrap_err().to_string()
}

#[test]
fn the_example_of_the_contract_is_read() {
    let config = load_text(EXAMPLE, &[], vec![]).unwrap().config;
    assert_eq!(config.admission.max_active_users, Some(20_000));
    assert_eq!(config.admission.enforcement, Enforcement::Shadow);
    assert_eq!(config.fleet.unwrap().sync_every, Some(Duration::from_secs(1)));
    assert_eq!(config.admin.token_file.unwrap(), Path::new("/etc/headcount/admin.token"));
}

#[test]
fn an_error_names_a_file_as_the_user_did() {
    let directory = tempfile::tempdir().unwrap();
    let read = |file: &Path| {
        let loaded = load(Some(file), std::iter::empty(), vec![], |_| Ok(()));
        loaded.map(|loaded| loaded.config).unwrap_err().to_string()
    };
    for (name, bytes, place, says) in [
        ("unknown", &b"[admission]\nmax_users = 5"[..], ":2:1", "did you mean admission.max_active_users?"),
        ("of another type", b"[admission]\nmax_active_users = 'x'", ":2:20", "a whole number"),
        ("no TOML", b"[admission]\nmax_active_users = 5 5", ":2:20", "this is not TOML"),
        ("no text", b"\xff", "", "UTF-8"),
    ] {
        let file = directory.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let error = read(&file);
        assert!(error.contains(&format!("--> {}{place}\n", file.display())) || place.is_empty(), "{error}");
        assert!(error.contains(says) && error.contains(name), "{error}");
    }
    let (directory, gone) = (directory.path(), directory.path().join("gone"));
    for (file, what) in [(directory, "directory"), (&gone, "No such file")] {
        let error = read(file);
        assert!(error.ends_with(&format!("--> {}", file.display())) && error.contains(what), "{error}");
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
    for key in keys::KEYS.iter().filter(|key| !keys::is_section(&key.name)) {
        if keys::repeated(&key.name).is_some() {
            continue;
        }
        let line = example(key, &Place::Variable(String::new()));
        let variable = line.strip_prefix("such as ").unwrap().split_once('=').unwrap();
        assert!(load_text("", &[variable], vec![]).is_ok(), "{line}");
    }
}

#[test]
fn an_unknown_key_names_the_nearest_one() {
    for (text, says) in [
        (
            "[admission]\nmax_active_user = 5",
            "there is no key admission.max_active_user; did you mean admission.max_active_users?",
        ),
        ("max_active_users = 5", "there is no key max_active_users; did you mean admission.max_active_users?"),
        ("[adminn]\nlisten = '127.0.0.1:1'", "there is no section [adminn]; did you mean [admin]?"),
        (
            "[[limits]]\nname = 'a'\nkey = 'token'\nrate = '1/s'",
            "there is no section [limits]; did you mean [[limit]]?",
        ),
        ("[redis]\nuri = 'x'", "there is no key redis.uri; did you mean redis.url?"),
        (
            "[[route]]\npath = '/x'\nclass = 'admit'\nclas = 'x'",
            "there is no key route.clas; did you mean route.class?",
        ),
        (
            "[fleet]\ncolour = 'x'",
            "there is no key fleet.colour; there are fleet.namespace, fleet.sync_every, fleet.news_every, \
             fleet.on_outage, fleet.expected_nodes, fleet.node",
        ),
    ] {
        assert!(complaint(text).starts_with(&format!("error: {says}")), "{}", complaint(text));
    }
    let variable = [("HEADCOUNT__WINDOW__SLOT", "30")];
    let error = load_text("", &variable, vec![]).map(|loaded| loaded.config).unwrap_err().to_string();
    assert!(error.starts_with("error: there is no key window.slot; did you mean window.slots?"), "{error}");
    assert!(error.contains("--> the environment variable HEADCOUNT__WINDOW__SLOT"), "{error}");
}

#[test]
fn a_misspelled_key_counts_as_the_one_that_was_meant() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headcount.toml");
    std::fs::write(&file, "[admision]\nmax_active_users = 0\n").unwrap();
    let check = |config: &Config| crate::server::Validated::check(config);
    let error = load(Some(&file), std::iter::empty(), vec![], check).err().unwrap().to_string();
    assert!(error.contains("[admision]; did you mean [admission]?"), "{error}");
    assert!(error.contains("admission.max_active_users is 0;") && !error.contains("missing"), "{error}");
}

#[test]
fn all_errors_are_reported_at_once_from_top_to_bottom() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headcount.toml");
    let text = r#"
        [server]
        listen = "localhost:70711"
        trusted_proxies = ["127.0.0.1", "nginx"]
        [[limit]]
        name = "a"
        key = "subject"
        rate = "5"
        [[limit]]
        name = "b"
        key = "token"
        store = "postgres"
        max_keys = 0
        [window]
        length = "30"
        slots = -5
        [admission]
        max_active_users = 5 # of which [admin] knows nothing
        resume_ratio = 1.5
        refill = "never"
        enforcment = "shadow"
    "#;
    std::fs::write(&file, text).unwrap();
    let variable = |name: &str, value: &str| (format!("HEADCOUNT__{name}"), value.to_owned());
    let environment = [variable("FLEET__SYNC_EVERY", "1"), variable("ADMIN__OPEN_METRICS", "yes")];
    let flags = vec![("admin.listen", "localhost".to_owned())];
    let check = |config: &Config| crate::server::Validated::check(config);
    let error = load(Some(&file), environment.into_iter(), flags, check).err().unwrap();
    let report = error.to_string();
    let told: Vec<_> = report.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    let beginnings = [
        "server.listen is \"localhost:70711\", which has a port above 65535",
        "server.trusted_proxies holds \"nginx\"; ",
        "limit[0].key holds \"subject\"; there is no subject without verified tokens",
        "limit[0].rate: \"5\" is not a rate; ",
        "limit[1].rate is missing",
        "limit[1].store holds \"postgres: [postgres] is missing",
        "limit[1].max_keys holds \"0\"; ",
        "window.length is \"30\", which has no unit; it must be a number and its unit",
        "window.slots is -5; it must be a whole number from 1 to 120",
        "admission.resume_ratio is 1.5; it must be above 0",
        "admission.refill is \"never\"; it must be \"continuous\" or \"after-resume\"",
        "there is no key admission.enforcment; did you mean admission.enforcement?",
        "admin.open_metrics is \"yes\"; it must be true or false",
        "fleet.sync_every is \"1\", which has no unit",
        "redis.url is missing: with [fleet]",
        "token.secret_file is missing",
        "admin.listen is \"localhost\", which has no port",
    ];
    let mut rest: Vec<_> = told.clone();
    for beginning in beginnings {
        let found = rest.iter().position(|line| line.starts_with(beginning));
        rest.remove(found.unwrap_or_else(|| panic!("no {beginning:?} in\n{report}")));
    }
    assert_eq!(rest, [format!("there are {} errors in the configuration", beginnings.len())], "{report}");
    let name = file.display();
    let lines = report.lines().filter_map(|line| line.trim_start().strip_prefix(&format!("--> {name}:")));
    let numbers: Vec<usize> = lines.filter_map(|place| place.split(':').next()?.parse().ok()).collect();
    assert!(numbers.len() >= 12 && numbers.is_sorted(), "{numbers:?} {report}");
    // The width of the gutter depends on the line numbers.
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let report = squeezed(&report);
    for excerpt in [
        &format!("--> {name}:4:41 | 4 | trusted_proxies = [\"127.0.0.1\", \"nginx\"] | ^^^^^^^ |"),
        "= help: such as trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]",
        "--> the flag --admin = help: such as --admin 127.0.0.1:7071",
        "--> the environment variable HEADCOUNT__FLEET__SYNC_EVERY = help: such as HEADCOUNT__FLEET__SYNC_EVERY=1s",
        "= help: such as length = \"30m\"",
    ] {
        assert!(report.contains(excerpt), "{excerpt}\nis not in\n{report}");
    }
}

#[test]
fn every_key_has_a_valid_example() {
    let mut text =
        String::from("limit = [{}]\nroute = [{}]\nopening = [{}]\nline.class = [{}]\nline.page.text = [{}]\n");
    for key in keys::KEYS.iter() {
        let example = parse_value(&key.such_as);
        let mut values = Value::Table(toml::from_str(&text).unwrap());
        let path = key.name.replace("limit.", "limit[0].").replace("route.", "route[0].");
        let path = path.replace("page.text.", "page.text[0].").replace("opening.", "opening[0].");
        let path = path.replace("line.class.", "line.class[0].");
        put(&mut values, &path, example);
        text = toml::to_string(&values).unwrap();
    }
    let mut values: toml::Table = toml::from_str(&text).unwrap();
    // Together the examples have the right types.
    let config: Config = Config::deserialize(values.clone()).unwrap();
    assert_eq!(config.limit[0].rate.permits, 20);
    // The files that these keys name do not exist here.
    for key in ["secret_file", "earlier_secret_files", "jwt"] {
        values["token"].as_table_mut().unwrap().remove(key);
    }
    values["admin"].as_table_mut().unwrap().remove("token_file");
    values["line"]["page"].as_table_mut().unwrap().remove("template");
    // Without verified tokens, no class can ask for a claim.
    values["line"]["class"][0].as_table_mut().unwrap().insert("match".into(), "header:X-Plan=premium".into());
    // One of three ways to name the servers of Redis. The user needs a password, which is in a file.
    for keys in [&["url"][..], &["sentinels", "master", "database"], &["cluster"]] {
        let mut values = values.clone();
        values["redis"].as_table_mut().unwrap().retain(|key, _| keys.contains(&key));
        let config = Config::deserialize(values).unwrap();
        crate::server::Validated::check(&config).unwrap();
    }
}

#[test]
fn an_error_of_a_whole_table_is_placed_at_that_table() {
    let text = "admission.max_active_users = 5\n[[limit]]\nname = 'a'\nkey = 'token'\nrate = '5/s'\n[[limit]]\n\
                name = 'b'\nkey = 'token'\nrate = '5/s'\n";
    let loaded = load_text(text, &[], vec![]).unwrap();
    let refused = ConfigError::Limit { name: "b".into(), why: "it is too long".into() };
    let report = loaded.locate(refused).to_string();
    assert!(report.contains(":6:1"), "{report}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headcount.toml");
    let text = "admission.max_active_users = 5\ntoken.secret = '0123456789012345'\n[[line.page.text]]\n\
                language = 'de'\n[[line.page.text]]\nlanguage = 'fr'\n";
    std::fs::write(&file, text).unwrap();
    let check = |config: &Config| crate::server::Validated::check(config);
    let report = load(Some(&file), std::iter::empty(), vec![], check).err().unwrap().to_string();
    assert!(report.contains("holds \"fr without title\"") && report.contains(":5:1"), "{report}");
}

#[test]
fn names_are_resolved() {
    let config = load_text("[server]\nlisten = 'localhost:7070'", &[], vec![]).unwrap().config;
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:7070");
    let variable = [("HEADCOUNT__ADMIN__LISTEN", "localhost:1")];
    assert_eq!(load_text("", &variable, vec![]).unwrap().config.admin.listen.port(), 1);
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
        ("[server]\nlisten = 'here'", ["has no port", "server.listen", "headcount.toml"]),
    ] {
        let error = complaint(text);
        for part in parts {
            assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
        }
    }
    assert!(complaint("[admission").contains("headcount.toml:1:"));
}

#[test]
fn a_value_out_of_bounds_in_the_environment_names_the_variable() {
    let variable = [("HEADCOUNT__ADMISSION__RESUME_RATIO", "1.5")];
    let loaded = load_text(EXAMPLE, &variable, vec![]).unwrap();
    let error = loaded.locate(ConfigError::ResumeRatio { found: 1.5 }).to_string();
    assert!(error.starts_with("error: admission.resume_ratio is 1.5"), "{error}");
    assert!(error.contains("--> the environment variable HEADCOUNT__ADMISSION__RESUME_RATIO"), "{error}");
}

#[test]
fn the_list_of_keys_is_complete() {
    fn check(prefix: &str, section: &serde_json::Value) {
        for (key, value) in section.get(0).unwrap_or(section).as_object().into_iter().flatten() {
            let key = format!("{prefix}{key}");
            check(&format!("{key}."), value);
            let is_section = !prefix.contains('.') && value.is_object() || value.get(0).is_some_and(|v| v.is_object());
            assert!(keys::find(&key).is_some() || keys::is_section(&key) || is_section, "{key}");
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
        ("[[limit]]\nname = 'a'\nkey = 'cookie'\nrate = '1/s'", ["cookie", "no key of a limit"]),
        ("[[limit]]\nname = 'a'\nkey = ['path', 'cookie']\nrate = '1/s'", ["cookie", "no key of a limit"]),
        ("[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1'", ["\"1\"", "not a rate"]),
        ("[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1/s'\nalgorithm = 'magic'", ["magic", "sliding_log"]),
        ("[[limit]]\nname = 'a'\nkey = 'token'", ["limit[0].rate is missing", "headcount.toml:1:1"]),
        ("[mysql]", ["mysql.url is missing", "headcount.toml:1:1"]),
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
        ("[redis]\nurl = \"redis://:canary@localhost\nnamespace = 'x'", ":2:"),
        ("[token]\nsecret = canary-canary-canary", ":2:"),
        ("[token]\nsecret = 'canary-canary-canary", ":2:"),
        ("secret = 'a'\n[token\nsecret = 'canary'", ":2:"),
        ("[token]\nfrom = ['bearer'], secret = 'canary'", ":2:"),
        ("[admission]\nmax_active_users = 5 5 # canary", ":2:"),
        ("token = { from = 5 5, secret = 'canary' }", ":1:"),
        ("[token]\nsecret = \"\"\"\ncanary\n\"\"\" x", "this is not TOML"),
        ("redis = 'redis://:canary@localhost'", "redis is a text, which is not shown; it must be a section"),
        ("postgres = 'postgres://me:canary@localhost'", "postgres"),
        ("token = 'canary-canary-canary'", "token"),
        ("token.jwt = 'https://me:canary@login.example'", "token.jwt"),
        ("[redis]\nurl = ['redis://:canary@localhost']", "redis.url is a list"),
        ("[redis]\nurl = { canary = 'redis://:canary@localhost' }", "redis.url is a section"),
        ("[redis]\nuri = 'redis://:canary@localhost'", "redis.url"),
        ("[redis]\npassword = 'canary'", "there is no key redis.password"),
        ("[redus]\nurl = 5 # redis://:canary@localhost", "redis"),
        ("redis = { url = 'redis://:canary@localhost', ca_file = 5 }", ":1:56"),
        ("token = { secrets = 'canary', from = 5, more = 'canary' }", "token.from is 5"),
        ("[token]\nsecret = \"\"\"\ncanary\ncanary\"\"\"\nfrom = 5", ":5:8"),
        ("[admission]\nrefill = 'never' # canary", "refill = 'never'"),
    ] {
        let error = load_text(text, &[], Flags::new()).err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
        assert!(error.contains(says) && !error.contains("canary"), "{text}: {error}");
    }
    // Values of the right type that are still refused.
    for text in [
        "[redis]\nurl = 'http://me:canary@localhost'\n[token]\nsecret = 'a canary of some length'",
        "[redis]\nurl = 'redis://me:can#canary@localhost'\n[token]\nsecret = 'a canary of some length'",
        "[token]\nsecret = 'canary'",
        "[redis]\ncluster = ['redis://:canary@10.0.0.1:6379']\n[token]\nsecret = 'a key of some length'",
        "[redis]\nsentinels = ['me:canary@a:1']\nmaster = 'm'\n[token]\nsecret = 'a key of some length'",
        "[token.jwt]\njwks_url = 'http://me:canary@login.example/keys?key=canary'",
        "[postgres]\nurl = 'canary'\n[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1/s'\nstore = 'postgres'",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("headcount.toml");
        std::fs::write(&file, text).unwrap();
        let error = load(Some(&file), std::iter::empty(), vec![], crate::server::Validated::check).err().unwrap();
        assert!(!error.to_string().contains("canary"), "{text}: {error}");
    }
    let terminal = load_text("\"\\u001b[2J\" = 1", &[], vec![]).err().unwrap().to_string();
    assert!(terminal.contains("there is no key") && !terminal.contains('\u{1b}'), "{terminal:?}");
    for name in ["TOKEN__SECRT", "REDIS__URI", "TOKEN", "LIMIT__URL", "POSTGRES__URL__X"] {
        let variable = [(format!("HEADCOUNT__{name}"), "canary".to_owned())];
        let error = load(None, variable.into_iter(), vec![], |_| Ok(())).err().unwrap().to_string();
        assert!(error.contains(name) && !error.contains("canary"), "{error}");
    }
}
