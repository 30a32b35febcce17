//! Limits wrong passwords to five a minute: in memory, in Redis, or in MySQL, chosen by a flag.
//!
//! ```sh
//! cargo run --features server --example login_limit
//! cargo run --features server --example login_limit -- --store redis --url redis://127.0.0.1:6379/0
//! cargo run --features server,mysql --example login_limit -- --store mysql --url mysql://root@127.0.0.1/headcount
//! ```
//!
//! Seven attempts are made for Alice, the last with the right password. A right password costs nothing: the limiter is
//! peeked at before the password is checked, and charged after it was wrong.

use clap::{Parser, ValueEnum};
use headcount::RedisConnection;
use headcount::limit::{Ask, Limiter, Memory, OnStoreError, Redis, sliding_log};
use std::time::Duration;

const WRONG_PASSWORDS: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Arguments {
    /// Where wrong passwords are counted: in memory for this server alone, or in Redis or MySQL for all servers
    /// together.
    #[arg(long, value_enum, default_value = "memory")]
    store: Store,
    /// The store's address; each store has a default.
    #[arg(long)]
    url: Option<String>,
    /// The user who logs in.
    #[arg(long, default_value = "alice")]
    user: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Memory,
    Redis,
    #[cfg(feature = "mysql")]
    Mysql,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let url = |usual: &str| arguments.url.clone().unwrap_or_else(|| usual.to_owned());
    let policy = sliding_log(WRONG_PASSWORDS.into(), MINUTE);
    let limiter = match arguments.store {
        Store::Memory => Limiter::new("login", Memory::new(policy)?),
        Store::Redis => {
            let connection = RedisConnection::open(&url("redis://127.0.0.1:6379/0"))?;
            Limiter::new("login", Redis::new(&connection, "login", policy)?)
        }
        #[cfg(feature = "mysql")]
        Store::Mysql => {
            let mysql = headcount::limit::Mysql::open(url("mysql://root@127.0.0.1:3306/headcount"))?;
            mysql.install().await?;
            mysql.set_zone(1, WRONG_PASSWORDS, MINUTE).await?;
            Limiter::new("login", mysql.velocity(1))
        }
    };
    // A store that is down must not help a client that guesses passwords: while it is down, each server counts for
    // itself.
    let limiter =
        limiter.on_store_error(OnStoreError::Local(Memory::new(sliding_log(WRONG_PASSWORDS.into(), MINUTE))?));

    for password in ["123456", "qwerty", "letmein", "dragon", "monkey", "sunshine", "correct horse"] {
        println!("{} / {password:13} {}", arguments.user, log_in(&limiter, &arguments.user, password).await?);
    }
    Ok(())
}

async fn log_in(limiter: &Limiter, user: &str, password: &str) -> Result<String, Box<dyn std::error::Error>> {
    let look = limiter.ask(user, Ask::ONE.peek()).await?;
    if !look.is_allowed() {
        let seconds = look.retry().unwrap_or(MINUTE).as_secs_f64().ceil();
        return Ok(format!("429: too many wrong passwords; again in {seconds} s"));
    }
    if password == "correct horse" {
        return Ok("200: welcome".to_owned());
    }
    let answer = limiter.ask(user, Ask::ONE).await?;
    Ok(format!("401: wrong; {} attempts left", answer.remaining))
}
