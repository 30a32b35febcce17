//! The Redis under test, an existing one or one started for the test, and the measurement of its load.

use redis::aio::MultiplexedConnection;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::sleep;

/// The commands that are counted here: those that clients send and scripts do not, because `INFO commandstats` counts
/// calls inside scripts, too. Servers read values by HMGET, which scripts use as well: see `Stopwatch::fetched`.
///
/// With large filters, servers send more commands, most of which are not counted. For X above some 65,000, filters
/// exceed 256 KiB, and a server sends one HGET per round before an upload, to see whether it can still win. For X above
/// some 131,000 it uses EVALSHA instead, reads with MGET, and stages values with SET; only EVALSHA is counted.
const CLIENT_COMMANDS: [&str; 3] = ["evalsha", "eval", "script|load"];

/// A Redis and, if it is ours, its process.
pub struct RedisServer {
    pub url: String,
    child: Option<Child>,
}

#[derive(Debug, thiserror::Error)]
pub enum RedisServerError {
    #[error(
        "redis-server is not installed: install it (apt install redis-server, brew install redis), \
         name one with --redis redis://HOST:PORT/, or run with --store memory"
    )]
    NotInstalled,
    #[error("redis-server cannot be started: {0}")]
    Start(io::Error),
    #[error("Redis at {url} does not answer: {why}")]
    Silent { url: String, why: redis::RedisError },
}

/// The work that Redis has done since its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    pub commands: u64,
    /// The commands that run a script.
    pub scripts: u64,
    pub bytes: u64,
}

impl RedisServer {
    /// Uses the Redis at this URL, or starts one if there is no URL.
    pub async fn open(url: Option<&str>) -> Result<Self, RedisServerError> {
        let server = match url {
            Some(url) => Self { url: url.to_owned(), child: None },
            None => Self::start()?,
        };
        server.wait_until_it_answers().await?;
        Ok(server)
    }

    fn start() -> Result<Self, RedisServerError> {
        let port = free_port().map_err(RedisServerError::Start)?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        let child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => RedisServerError::NotInstalled,
                _ => RedisServerError::Start(error),
            })?;
        Ok(Self { url: format!("redis://127.0.0.1:{port}/"), child: Some(child) })
    }

    async fn wait_until_it_answers(&self) -> Result<(), RedisServerError> {
        let mut attempts = 0;
        loop {
            match self.connect().await {
                Ok(_) => return Ok(()),
                Err(why) if attempts == 50 => return Err(RedisServerError::Silent { url: self.url.clone(), why }),
                Err(_) => attempts += 1,
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads how much Redis has done. The bytes of the meter's own requests are subtracted.
pub struct Meter {
    connection: MultiplexedConnection,
    own_bytes: u64,
}

impl Meter {
    pub fn new(connection: MultiplexedConnection) -> Self {
        Self { connection, own_bytes: 0 }
    }

    pub async fn read(&mut self) -> redis::RedisResult<Traffic> {
        let mut info = redis::cmd("INFO");
        info.arg("stats").arg("commandstats");
        let text: String = info.query_async(&mut self.connection).await?;
        let bytes = field(&text, "total_net_input_bytes:") + field(&text, "total_net_output_bytes:");
        let commands = CLIENT_COMMANDS.iter().map(|name| field(&text, &format!("cmdstat_{name}:calls="))).sum();
        let scripts = ["evalsha", "eval"].iter().map(|name| field(&text, &format!("cmdstat_{name}:calls="))).sum();
        let traffic = Traffic { commands, scripts, bytes: bytes.saturating_sub(self.own_bytes) };
        self.own_bytes += (text.len() + info.get_packed_command().len()) as u64;
        Ok(traffic)
    }
}

/// The number after this name; 0 if there is none.
fn field(text: &str, name: &str) -> u64 {
    let Some((_, rest)) = text.split_once(&format!("\n{name}")) else { return 0 };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().unwrap_or_default()
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
