use super::*;
use crate::bloom::Shape;
use crate::fingerprint::FingerprintKey;
use std::time::Duration;

fn config() -> Config {
    let mut config = Config::default();
    config.admission.max_active_users = Some(20_000);
    config
}

fn check(config: &Config) -> Result<Settings, ConfigError> {
    config.check(FingerprintKey::new(&[7; 16]).unwrap())
}

fn complaint(change: impl FnOnce(&mut Config)) -> String {
    let mut config = config();
    change(&mut config);
    check(&config).expect_err("should be refused").to_string()
}

#[test]
fn the_defaults_need_nothing_but_x() {
    let settings = check(&config()).unwrap();
    assert_eq!(settings.capacity, 65_536);
    assert_eq!(settings.slot_length, Duration::from_secs(60));
    assert_eq!(settings.sync_every, Duration::from_secs(1));
    assert!(matches!(check(&Config::default()), Err(ConfigError::MaxActiveUsersMissing)));
}

#[test]
fn the_default_capacity_stays_the_same_for_small_x() {
    for (max_active_users, capacity) in [(1, 16_384), (8192, 16_384), (8193, 32_768), (Shape::MAX_CAPACITY, 1 << 26)] {
        let mut config = config();
        config.admission.max_active_users = Some(max_active_users);
        assert_eq!(check(&config).unwrap().capacity, capacity);
    }
}

#[test]
fn short_windows_get_a_period_that_fits() {
    let mut config = config();
    config.window.length = Duration::from_secs(3);
    assert_eq!(check(&config).unwrap().sync_every, Duration::from_millis(50));
}

#[test]
fn each_value_out_of_bounds_is_named_with_its_key() {
    let fleet = |config: &mut Config, change: fn(&mut Fleet)| change(config.fleet.insert(Fleet::default()));
    let complaints = [
        (complaint(|c| c.admission.max_active_users = Some(0)), "admission.max_active_users is 0"),
        (
            complaint(|c| c.admission.max_active_users = Some(u64::MAX)),
            "admission.max_active_users is 18446744073709551615",
        ),
        (complaint(|c| c.admission.newcomers_per_minute = Some(0)), "admission.newcomers_per_minute is 0"),
        (
            complaint(|c| c.admission.newcomers_per_minute = Some(10_000_001)),
            "admission.newcomers_per_minute is 10000001",
        ),
        (complaint(|c| c.admission.resume_ratio = 1.5), "admission.resume_ratio is 1.5"),
        (complaint(|c| c.admission.resume_ratio = f64::NAN), "admission.resume_ratio is NaN"),
        (complaint(|c| c.admission.retry_after.max = Duration::from_secs(3)), "admission.retry_after is 15s to 3s"),
        (complaint(|c| c.admission.exempt_paths = vec!["x".into()]), "admission.exempt_paths holds \"x\""),
        (complaint(|c| c.window.slots = 0), "window.slots is 0"),
        (complaint(|c| c.window.length = Duration::from_millis(30)), "window.length is 30ms in 30 slots"),
        (complaint(|c| c.window.capacity = Some(19_999)), "window.capacity is 19999"),
        (complaint(|c| c.window.capacity = Some(u64::MAX)), "window.capacity is 18446744073709551615"),
        (complaint(|c| c.window.false_positive_rate = 0.0), "window.false_positive_rate is 0"),
        (complaint(|c| c.token.from = vec![]), "token.from is empty"),
        (complaint(|c| fleet(c, |f| f.namespace = "a b".into())), "fleet.namespace is \"a b\""),
        (complaint(|c| fleet(c, |f| f.sync_every = Some(Duration::from_secs(31)))), "fleet.sync_every is 31s"),
    ];
    for (complaint, beginning) in complaints {
        assert!(complaint.starts_with(beginning), "{complaint:?} does not begin with {beginning:?}");
    }
}

#[test]
fn the_generation_changes_with_everything_that_keeps_filters_apart() {
    let generation = |change: fn(&mut Config), key: u8| {
        let mut config = config();
        change(&mut config);
        config.check(FingerprintKey::new(&[key; 16]).unwrap()).unwrap().generation
    };
    let base = generation(|_| (), 7);
    assert_eq!(base, generation(|c| c.admission.max_active_users = Some(30_000), 7));
    assert_ne!(base, generation(|_| (), 8));
    assert_ne!(base, generation(|c| c.window.slots = 15, 7));
    assert_ne!(base, generation(|c| c.window.length *= 2, 7));
    assert_ne!(base, generation(|c| c.window.capacity = Some(100_000), 7));
}

#[test]
fn a_secret_file_is_read_without_its_final_newline() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fingerprint.key");
    let mut config = config();
    config.token.secret_file = Some(file.clone());
    assert!(config.token.fingerprint_key().unwrap_err().to_string().starts_with("token.secret_file names "));
    std::fs::write(&file, b"fifteen bytes!!\n").unwrap();
    assert!(config.token.fingerprint_key().unwrap_err().to_string().contains("15 bytes"));
    std::fs::write(&file, b"sixteen bytes!!!\n").unwrap();
    let key = config.token.fingerprint_key().unwrap().unwrap();
    assert_eq!(key.id(), FingerprintKey::new(b"sixteen bytes!!!").unwrap().id());
}

#[test]
fn a_url_is_shown_without_its_password() {
    for (url, shown) in [
        ("redis://user:canary@host:6379/1", "redis://[redacted]@host:6379/1"),
        ("redis+unix:///run/redis.sock?db=1&pass=canary", "redis+unix:///run/redis.sock?[redacted]"),
        ("redis://host/0", "redis://host/0"),
        ("canary", "[redacted]"),
    ] {
        assert_eq!(Secret::new(url).redacted_url(), shown);
    }
}

#[test]
fn secrets_are_never_shown() {
    let mut config = config();
    config.token.secret = Some(Secret::new("canary-canary-canary"));
    config.redis = Some(Redis { url: Some(Secret::new("redis://user:canary@host:6379/1")), ..Redis::default() });
    for shown in [format!("{config:?}"), serde_json::to_string(&config).unwrap()] {
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("redis://[redacted]@host:6379/1"), "{shown}");
    }
}
