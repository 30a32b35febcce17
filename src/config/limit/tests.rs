use super::*;
use crate::config::Config;

fn limit(name: &str) -> Limit {
    Limit { name: name.into(), ..Limit::default() }
}

fn complaint(limits: Vec<Limit>) -> String {
    let config = Config { limit: limits, ..Config::default() };
    Limit::check_all(&config).expect_err("should be refused").to_string()
}

#[test]
fn an_invalid_limit_names_its_key() {
    for (limits, beginning) in [
        (vec![limit("")], "limit.name holds \"\""),
        (vec![limit("a b")], "limit.name holds \"a b\""),
        (vec![limit("a"), limit("a")], "limit.name holds \"a\"; another limit has this name"),
        (vec![Limit { routes: vec!["login".into()], ..limit("a") }], "limit.routes holds \"login\""),
        (vec![Limit { key: LimitKey::Subject, ..limit("a") }], "limit.key holds \"subject\""),
        (
            vec![Limit { applies_to: AppliesTo::Newcomers, store: LimitStore::Redis, ..limit("a") }],
            "limit.store holds \"redis\"; a limit of newcomers",
        ),
        (vec![Limit { applies_to: AppliesTo::Newcomers, max_wait: ten_seconds(), ..limit("a") }], "limit.max_wait"),
        (
            vec![Limit { algorithm: Algorithm::SlidingLog, store: LimitStore::Postgres, ..limit("a") }],
            "limit.algorithm holds \"sliding_log\"",
        ),
        (vec![Limit { burst: Some(0), ..limit("a") }], "limit.burst holds \"0\""),
        (vec![Limit { store: LimitStore::Redis, ..limit("a") }], "limit.store holds \"redis: [redis] is missing"),
        (vec![Limit { store: LimitStore::Postgres, ..limit("a") }], "limit.store holds \"postgres"),
        (
            vec![Limit { store: LimitStore::Mysql, algorithm: Algorithm::Velocity, ..limit("a") }],
            "limit.store holds \"mysql",
        ),
    ] {
        let complaint = complaint(limits);
        assert!(complaint.starts_with(beginning), "{complaint:?} does not begin with {beginning:?}");
    }
}

#[test]
fn zones_are_numbered_and_nobody_shares_one() {
    let zone =
        |name: &str, zone| Limit { store: LimitStore::Mysql, algorithm: Algorithm::Velocity, zone, ..limit(name) };
    let mysql = Some(Database { url: Secret::new("mysql://host/limits") });
    let mut config = Config { mysql: mysql.clone(), limit: vec![zone("a", Some(1))], ..Config::default() };
    let error = Limit::check_all(&config).unwrap_err().to_string();
    assert!(error.starts_with("token.secret_file is missing: a database"), "{error}");
    config.token.secret = Some(Secret::new("sixteen bytes at least"));
    let check = |limits| Limit::check_all(&Config { limit: limits, ..config.clone() });
    assert!(check(vec![zone("a", Some(1)), zone("b", Some(2))]).is_ok());
    assert!(check(vec![zone("a", None)]).unwrap_err().to_string().starts_with("limit.zone is missing: "));
    let shared = check(vec![zone("a", Some(1)), zone("b", Some(1))]).unwrap_err().to_string();
    assert!(shared.starts_with("limit.zone holds \"1\""), "{shared}");
    for rate in ["5/1500ms", "0/1m", "3000000000/1s"] {
        let wrong = check(vec![Limit { rate: rate.parse().unwrap(), ..zone("a", Some(1)) }]).unwrap_err().to_string();
        assert!(wrong.starts_with("limit.rate holds "), "{rate}: {wrong}");
    }
}
