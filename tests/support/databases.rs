//! Real databases for tests and benches: a PostgreSQL and a MariaDB server in temporary directories, on Unix sockets.
#![allow(dead_code, unreachable_pub)] // Each user uses some of it.
#![allow(clippy::disallowed_methods)] // Tests wait in real time.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time that a server may take for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// A shell script that ends the server and removes its directory when the process that started it ends, however it
/// ends. `Drop` does not suffice: statics are never dropped, and a test that is killed drops nothing.
const KEEPER: &str = r#"trap '' INT TERM HUP
read _
all=$(pgrep -P "$(cat "$1/pid")"; cat "$1/pid")
kill -KILL $all
rm -rf "$1""#;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    MariaDb,
}

/// A database server for one test, which ends with it.
pub struct Server {
    kind: Kind,
    directory: PathBuf,
    process: Option<Child>,
    keeper: Child,
}

impl Server {
    pub fn postgres() -> Self {
        Self::start(Kind::Postgres)
    }

    pub fn mariadb() -> Self {
        Self::start(Kind::MariaDb)
    }

    fn start(kind: Kind) -> Self {
        let directory = tempfile::Builder::new().prefix("db").tempdir().unwrap().keep();
        std::fs::write(directory.join("pid"), "").unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&directory).process_group(0);
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { kind, directory, process: None, keeper };
        server.create();
        server.restart();
        server
    }

    fn create(&self) {
        let data = self.directory.join("data");
        match self.kind {
            Kind::Postgres => {
                if let Some(user) = unprivileged() {
                    std::os::unix::fs::chown(&self.directory, Some(user), Some(user)).unwrap();
                }
                let mut initdb = postgres_program("initdb");
                initdb
                    .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
                    .arg(&data);
                succeed(&mut initdb, "postgresql");
                let access = "local all locked scram-sha-256\nlocal all all trust\n";
                std::fs::write(data.join("pg_hba.conf"), access).unwrap();
            }
            Kind::MariaDb => {
                let mut install = Command::new("mariadb-install-db");
                install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                // A server that starts removes all temporary tables that it finds in a shared directory.
                install.arg(format!("--tmpdir={}", self.directory.display()));
                install.arg(format!("--datadir={}", data.display())).args(as_root());
                succeed(&mut install, "mariadb-server");
            }
        }
    }

    /// Starts the server on its existing data, and waits until it answers.
    pub fn restart(&mut self) {
        let begun = Instant::now();
        loop {
            self.spawn();
            // A server that was killed may still lock its files for a moment.
            if self.answers_before_it_ends() {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "the server does not start: {}", self.log());
        }
    }

    fn spawn(&mut self) {
        let (data, log) = (self.directory.join("data"), std::fs::File::create(self.directory.join("log")).unwrap());
        let mut command = match self.kind {
            Kind::Postgres => {
                let mut command = postgres_program("postgres");
                command.arg("-D").arg(&data).arg("-k").arg(&self.directory);
                for setting in ["listen_addresses=", "fsync=off", "max_connections=120", "shared_buffers=32MB"] {
                    command.args(["-c", setting]);
                }
                command
            }
            Kind::MariaDb => {
                // Debian installs it outside of the users' PATH.
                let debian = "/usr/sbin/mariadbd";
                let program = if std::path::Path::new(debian).exists() { debian } else { "mariadbd" };
                let mut command = Command::new(program);
                command.args(["--no-defaults", "--skip-networking", "--max-connections=200"]);
                // Written at each commit, so that a killed server loses nothing; the commit does not wait for the disk.
                command.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
                command.arg(format!("--tmpdir={}", self.directory.display()));
                command.arg(format!("--datadir={}", data.display())).args(as_root());
                command.arg(format!("--socket={}", self.socket().display()));
                command.arg(format!("--pid-file={}", self.directory.join("mariadb.pid").display()));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let process = command.spawn().expect("database servers are needed: ./test installs them");
        std::fs::write(self.directory.join("pid"), process.id().to_string()).unwrap();
        self.process = Some(process);
    }

    fn answers_before_it_ends(&mut self) -> bool {
        let begun = Instant::now();
        while self.process.as_mut().unwrap().try_wait().unwrap().is_none() {
            if self.answers() {
                return true;
            }
            assert!(begun.elapsed() < DEADLINE, "the server does not answer: {}", self.log());
            std::thread::park_timeout(Duration::from_millis(20));
        }
        false
    }

    fn answers(&self) -> bool {
        UnixStream::connect(self.socket()).is_ok()
            && (self.kind == Kind::MariaDb || self.log().contains("ready to accept connections"))
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(match self.kind {
            Kind::Postgres => ".s.PGSQL.5432",
            Kind::MariaDb => "socket",
        })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// The URL of a database, for the superuser or for another user.
    pub fn url(&self, user: &str, database: &str) -> String {
        match self.kind {
            Kind::Postgres => {
                let directory = self.directory.to_str().unwrap().replace('/', "%2F");
                format!("postgres://{user}@{directory}/{database}")
            }
            Kind::MariaDb => {
                let socket = self.socket().to_str().unwrap().replace('/', "%2F");
                format!("mysql://{user}@localhost/{database}?socket={socket}")
            }
        }
    }

    /// Kills the server at once, with all its sessions.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        self.process.take().unwrap().wait().unwrap();
    }

    /// Stops every process of the server: connections stay open, and nothing answers.
    pub fn stall(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped server go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let Some(process) = &self.process else { return };
        let parent = process.id().to_string();
        let send = |signal, pid: &str| Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status().unwrap();
        // The parent starts no more children meanwhile. Once it is dead, its children can no longer be listed.
        send("-STOP", &parent);
        let children = Command::new("pgrep").args(["-P", &parent]).output().unwrap().stdout;
        for process in String::from_utf8_lossy(&children).split_whitespace().chain([parent.as_str()]) {
            send(signal, process);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }
}

fn succeed(command: &mut Command, package: &str) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{package} is needed: ./test installs it ({error})"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// The number of the user who runs PostgreSQL if this process runs as root, because PostgreSQL refuses to be run by
/// root; `None` if it does not.
fn unprivileged() -> Option<u32> {
    is_root().then_some(65534)
}

fn as_root() -> Option<&'static str> {
    is_root().then_some("--user=root")
}

fn postgres_program(name: &str) -> Command {
    let program = postgres_directory().join(name);
    let Some(user) = unprivileged() else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups").arg(program);
    // That user may not be able to read the working directory of root.
    command.current_dir("/");
    command
}

/// Debian installs the server's programs in a directory for each version, outside of the PATH; the newest is taken.
fn postgres_directory() -> PathBuf {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<u32> = debian.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable();
    let debian = versions.iter().rev().map(|version| format!("/usr/lib/postgresql/{version}/bin").into());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = debian.chain(std::env::split_paths(&path));
    let has_all = |place: &PathBuf| ["initdb", "postgres"].iter().all(|program| place.join(program).exists());
    places.find(has_all).expect("postgresql is needed: ./test installs it")
}
