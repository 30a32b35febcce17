//! Real parts for tests: the program itself, a redis-server, and requests written byte by byte.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

pub mod cluster;
pub mod flood;
pub mod proxy;
pub mod sentinels;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest time that a test waits for anything.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until a condition holds; fails the test, naming the condition, if it never does.
#[allow(clippy::disallowed_methods)] // Tests wait in real time.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(met) = condition() {
            return met;
        }
        assert!(begun.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Process {
    pub fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Pauses it; when this returns, it is paused.
    pub fn pause(&self) {
        self.signal("-STOP");
        let threads = format!("/proc/{}/task", self.0.id());
        let stands_still = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        wait_for("the process to stand still", || {
            std::fs::read_dir(&threads).unwrap().filter_map(Result::ok).all(stands_still).then_some(())
        });
    }

    pub fn wait(&mut self) -> Option<i32> {
        wait_for("the process to end", || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running `headcount serve`.
pub struct Server {
    pub process: Process,
    pub check: SocketAddr,
    pub admin: SocketAddr,
    pub log: PathBuf,
}

/// The path of the program. Tests that run for hours set it to a copy, which no build replaces in the meantime.
pub static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The program with a state directory of its own, and no environment that configures it.
pub fn program(state: &Path) -> Command {
    program_at(binary(), state)
}

/// The same with another build of the program.
pub fn program_at(path: &Path, state: &Path) -> Command {
    clean(Command::new(path), state)
}

fn binary() -> &'static Path {
    PROGRAM.get_or_init(|| env!("CARGO_BIN_EXE_headcount").into())
}

fn clean(mut command: Command, state: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HEADCOUNT") {
            command.env_remove(name);
        }
    }
    command.env_remove("STATE_DIRECTORY").env("XDG_STATE_HOME", state);
    command
}

/// As [`program`], with this limit of open files.
pub fn program_with_files(state: &Path, files: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {files} && exec \"$0\" \"$@\"")).arg(binary());
    clean(shell, state)
}

impl Server {
    /// Starts on free ports, and waits until it listens.
    pub fn start(state: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_as(program(state), state, arguments, environment)
    }

    /// The same with another command of the program.
    pub fn start_as(mut command: Command, state: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let log = state.join(format!("log-{}", fastrand::u64(..)));
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(arguments);
        command.envs(environment.iter().copied()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
        let mut process = Process(command.spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let mut address = |what: &str| {
            let line = lines.next().and_then(Result::ok).unwrap_or_else(|| {
                panic!("no line about {what}: {}", std::fs::read_to_string(&log).unwrap_or_default())
            });
            let url = line.strip_prefix(what).expect(what).trim().strip_prefix("http://").unwrap().to_owned();
            url.split('/').next().unwrap().parse().unwrap()
        };
        Self { check: address("checks"), admin: address("admin"), process, log }
    }

    pub fn check(&self, token: &str) -> Answer {
        get(self.check, "/v1/check", &[("Authorization", &format!("Bearer {token}"))])
    }

    /// The decision about a token.
    pub fn decide(&self, token: &str) -> String {
        self.check(token).header("x-headcount-decision").to_owned()
    }

    pub fn status(&self) -> serde_json::Value {
        get(self.admin, "/api/v1/status", &[]).json()
    }

    pub fn is_ready(&self) -> bool {
        get(self.admin, "/readyz", &[]).status == 200
    }

    /// The memory that it uses.
    pub fn resident_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most memory that it has ever used.
    pub fn peak_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
    }

    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// An example's program; `cargo test` builds them.
pub fn example(name: &str) -> Command {
    let mut binary = std::env::current_exe().unwrap();
    binary.pop();
    binary.pop();
    Command::new(binary.join("examples").join(name))
}

/// The address that an example prints first.
pub fn started(command: &mut Command) -> (Process, SocketAddr) {
    command.stdout(Stdio::piped());
    let mut process = Process(command.spawn().expect("cargo test builds the examples"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line.trim().strip_prefix("http://").unwrap().parse().unwrap())
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        let line = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        line.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(address, "GET", path, headers, "")
}

pub fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("Host: {address}\r\n");
    }
    // As the admin page and the program `headcount` do.
    if matches!(method, "PUT" | "DELETE") || path == "/api/v1/explain" {
        text += "X-Headcount-Change: 1\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    raw(address, format!("{text}\r\n{body}").as_bytes()).expect("an answer")
}

/// Sends bytes as they are. `None` if the connection ended without an answer.
pub fn raw(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    raw_on(TcpStream::connect(address).unwrap(), bytes)
}

/// The same on an existing connection.
pub fn raw_on(mut stream: TcpStream, bytes: &[u8]) -> Option<Answer> {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A redis-server for one test.
pub struct Redis {
    pub process: Process,
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// The same, with more environment variables.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        // Another test may take the port between the choice of the port and the start.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(redis) = Self::start_on_in(port, arguments, environment) {
                return redis;
            }
        }
        panic!("redis-server found no free port");
    }

    /// A server that also speaks TLS, on the returned port; its own port stays plain for the test.
    pub fn start_tls(certificate: &Certificate, more: &[&str]) -> (Self, u16) {
        for _ in 0..20 {
            let [port, tls_port] = [(); 2]
                .map(|()| TcpListener::bind("127.0.0.1:0").unwrap())
                .map(|free| free.local_addr().unwrap().port());
            let tls_port_text = tls_port.to_string();
            let mut arguments = vec!["--tls-port", &tls_port_text, "--tls-auth-clients", "no"];
            arguments.extend(["--tls-cert-file", certificate.file(), "--tls-key-file", certificate.key_file()]);
            arguments.extend(["--tls-ca-cert-file", certificate.ca_file()]);
            arguments.extend(more);
            if let Some(redis) = Self::start_on(port, &arguments) {
                return (redis, tls_port);
            }
        }
        panic!("redis-server found no free ports, or cannot speak TLS");
    }

    /// Starts on this port; `None` if the port is taken.
    pub fn start_on(port: u16, arguments: &[&str]) -> Option<Self> {
        Self::start_on_in(port, arguments, &[])
    }

    fn start_on_in(port: u16, arguments: &[&str], environment: &[(&str, &str)]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&word| word.to_owned()).collect();
        let process = Self::launch(port, &arguments, environment, directory.path())?;
        Some(Self { process, port, directory, arguments })
    }

    fn launch(port: u16, arguments: &[String], environment: &[(&str, &str)], directory: &Path) -> Option<Process> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--dir", directory.to_str().unwrap()]).args(arguments);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A connection to a free port may reach another server, or itself: only the log shows that this one listens.
        let log = directory.join("redis.log");
        let _ = std::fs::remove_file(&log);
        command.arg("--logfile").arg(&log);
        let child = command.spawn().expect("redis-server is needed: ./test installs it");
        let mut process = Process(child);
        let up = wait_for("redis-server to answer", || {
            if process.0.try_wait().unwrap().is_some() {
                return Some(false);
            }
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Ready to accept connections")).then_some(true)
        });
        up.then_some(process)
    }

    /// SIGKILL, and a start on the same port, without the data. A node of a cluster still knows the others.
    pub fn start_again(&mut self) {
        self.process.signal("-KILL");
        self.process.wait();
        let start = || Self::launch(self.port, &self.arguments, &[], self.directory.path());
        self.process = wait_for("the port to be free", start);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Makes every save to disk fail, by a directory where the file would be, or (`broken` = false) succeed again.
    pub fn break_saves(&self, broken: bool) {
        let file = self.directory.path().join("dump.rdb");
        let _ = std::fs::remove_dir(&file);
        if broken {
            let _ = std::fs::remove_file(&file);
            std::fs::create_dir(&file).expect("a directory in our own directory");
        }
    }

    /// Adds the user `headcount`, with the password `password`, by the guide's rules: it may send the commands of a
    /// round in the namespace `default`, and no others.
    pub fn add_narrow_user(&self) {
        let guide = include_str!("../../docs/guide/redis.md");
        let rules = guide.lines().find_map(|line| line.strip_prefix("user ")).expect("the guide's rules");
        let words: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(rules.split_whitespace()).collect();
        let _: () = self.ask(&words);
    }

    /// Sends a command to this server, as an operator does.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap()
    }

    /// The same with a server that may not answer, or refuse.
    pub fn try_ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }
}

/// A certificate, its key and the certificate of its authority, as PEM files.
pub struct Certificate {
    directory: tempfile::TempDir,
    files: [String; 3],
}

impl Certificate {
    /// For the usual names of this machine, signed by an authority of its own.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// The same, changed before it is signed.
    pub fn with(change: impl FnOnce(&mut rcgen::CertificateParams)) -> Self {
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {}", fastrand::u64(..)));
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let mut own = rcgen::CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        change(&mut own);
        let key = rcgen::KeyPair::generate().unwrap();
        let own_pem = own.signed_by(&key, &issuer).unwrap().pem();
        let directory = tempfile::tempdir().unwrap();
        let files = [("own.pem", own_pem), ("own.key", key.serialize_pem()), ("ca.pem", authority_pem)];
        let files = files.map(|(name, text)| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        });
        Self { directory, files }
    }

    pub fn file(&self) -> &str {
        &self.files[0]
    }

    pub fn key_file(&self) -> &str {
        &self.files[1]
    }

    pub fn ca_file(&self) -> &str {
        &self.files[2]
    }
}

/// A connection on which Redis reports all commands (`MONITOR`), and says which are of clients and which of scripts.
pub struct Monitor {
    reader: BufReader<TcpStream>,
}

impl Monitor {
    pub fn start(redis: &Redis) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "+OK");
        Self { reader }
    }

    /// The commands that clients send until one of them sends an `ECHO` of `mark`. Each line is cut after 200 bytes,
    /// which hold the command's name and keys.
    pub fn lines_until(&mut self, mark: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            self.reader.read_until(b'\n', &mut line).unwrap();
            line.truncate(200);
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains(mark) {
                return lines;
            }
            if !line.contains(" lua]") {
                lines.push(line);
            }
        }
    }

    /// All bytes that clients and scripts have sent until now; `mark` is echoed.
    pub fn everything_until(&mut self, redis: &Redis, mark: &str) -> String {
        let _: String = redis.ask(&["ECHO", mark]);
        let mut everything = String::new();
        loop {
            let mut line = Vec::new();
            self.reader.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line);
            if line.contains(mark) {
                return everything;
            }
            everything += &line;
        }
    }

    /// The number of each command until now; `mark` is echoed now.
    pub fn commands_until(&mut self, redis: &Redis, mark: &str) -> BTreeMap<String, u64> {
        let _: String = redis.ask(&["ECHO", mark]);
        self.commands_before(mark)
    }

    /// The same, if the caller has `mark` echoed elsewhere.
    pub fn commands_before(&mut self, mark: &str) -> BTreeMap<String, u64> {
        let mut commands = BTreeMap::new();
        for line in self.lines_until(mark) {
            let name = line.split('"').nth(1).unwrap_or_default().to_ascii_uppercase();
            // Connecting, and a script's first call on a new server, do not belong to a round.
            if !name.is_empty() && !["CLIENT", "SCRIPT", "SELECT", "HELLO", "ECHO"].contains(&name.as_str()) {
                *commands.entry(name).or_insert(0) += 1;
            }
        }
        commands
    }
}
