//! One proxy, the application behind it, and a `headcount serve` beside it.

use crate::app::App;
use crate::kinds::{self, Kind, WhenSilent};
use crate::support::proxy::Proxy;
use crate::support::{Answer, Process, Server, program, program_with_files, raw, raw_on, wait_for};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use tempfile::TempDir;
use tokio::runtime::Handle;

/// The configuration of most cases.
const RULES: &str = "
[admission]
max_active_users = 1
exempt_paths = ['/healthz', '/assets/*']
[token]
secret = 'the key of the whole fleet'
[pass]
carry = 'header'
[server]
trusted_proxies = ['127.0.0.1']
";

pub struct Stack {
    pub app: App,
    pub headcount: Server,
    pub at: SocketAddr,
    /// Listens at headcount's address in the recipe, counts requests, and forwards them.
    pub gate: Option<Proxy>,
    proxy: Process,
    cache: Option<Process>,
    directory: TempDir,
}

impl Stack {
    pub fn start(runtime: &Handle, kind: Kind) -> Self {
        let gate = |headcount| Some(Proxy::start(runtime, headcount));
        Self::start_with(runtime, kind, WhenSilent::Patient, RULES, gate)
    }

    /// With nothing between proxy and headcount: if headcount does not listen, connections are refused.
    pub fn start_bare(runtime: &Handle, kind: Kind, when: WhenSilent) -> Self {
        Self::start_with(runtime, kind, when, RULES, |_| None)
    }

    /// With another configuration than the usual one.
    pub fn start_ruled(runtime: &Handle, kind: Kind, when: WhenSilent, rules: &str) -> Self {
        Self::start_with(runtime, kind, when, rules, |_| None)
    }

    /// As [`start_ruled`](Self::start_ruled), with a headcount that may open this many files.
    pub fn start_with_files(runtime: &Handle, kind: Kind, rules: &str, files: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let headcount = serve_with_files(&directory, rules, Some(files));
        Self::start_before(runtime, kind, WhenSilent::Open, directory, headcount, None)
    }

    fn start_with(
        runtime: &Handle,
        kind: Kind,
        when: WhenSilent,
        rules: &str,
        gate: impl FnOnce(SocketAddr) -> Option<Proxy>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let headcount = serve(&directory, rules);
        let gate = gate(headcount.check);
        Self::start_before(runtime, kind, when, directory, headcount, gate)
    }

    /// Starts a proxy and an application before a headcount that runs.
    fn start_before(
        runtime: &Handle,
        kind: Kind,
        when: WhenSilent,
        directory: TempDir,
        headcount: Server,
        gate: Option<Proxy>,
    ) -> Self {
        let app = App::start(runtime);
        let checks = gate.as_ref().map_or(headcount.check, |gate| gate.address);
        let (proxy, at) = kind.start(directory.path(), &[checks], app.at, when);
        Self { app, headcount, at, gate, proxy, cache: None, directory }
    }

    /// Replaces the running headcount by another one, which knows no users.
    pub fn forget(&mut self) {
        self.headcount = serve(&self.directory, RULES);
        self.gate.as_ref().expect("a gate").leads_to(self.headcount.check);
    }

    /// Stops the proxy as an operator does who lets it finish its requests, and waits until it accepts no others.
    /// HAProxy is reloaded: a second process accepts them.
    pub fn stop_proxy(&self, kind: Kind) {
        match kind {
            Kind::Nginx => self.proxy.signal("-QUIT"),
            Kind::Caddy => self.proxy.signal("-TERM"),
            Kind::Envoy => kinds::drain_envoy(self.directory.path()),
            // Shortly after its start, HAProxy loses signals.
            Kind::Haproxy => wait_for("a reload", || {
                self.proxy.signal("-USR2");
                kinds::logged(self.directory.path()).contains("Reloading HAProxy").then_some(())
            }),
        }
        wait_for("the proxy to stop", || match kind {
            Kind::Haproxy => kinds::logged(self.directory.path()).contains("Proxy web stopped").then_some(()),
            _ => TcpStream::connect(self.at).is_err().then_some(()),
        });
    }

    /// From now on requests go through an nginx that caches all that it may, and says in `X-Cache` whether the answer
    /// came from the cache.
    pub fn put_a_cache_in_front(&mut self) {
        let (process, at) = kinds::start_cache(self.directory.path(), self.at);
        (self.cache, self.at) = (Some(process), at);
    }

    /// Sends a request with `token`, and returns the client's answer.
    pub fn ask(&self, method: &str, path: &str, token: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_ask(method, path, token, headers, body).expect("an answer")
    }

    /// The same; `None` if the connection is closed without an answer.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<Answer> {
        let request = self.request(method, path, token, headers, body);
        raw(self.at, &request).map(unchunked)
    }

    /// A `GET` from another address of this machine.
    pub fn ask_from(&self, runtime: &Handle, from: &str, path: &str, token: &str, headers: &[(&str, &str)]) -> Answer {
        let request = self.request("GET", path, token, headers, b"");
        let stream = self.connect_from(runtime, from).expect("a connection");
        unchunked(raw_on(stream, &request).expect("an answer"))
    }

    /// Connects from another address of this machine. The connection leaves no port in TIME_WAIT: after some thousands
    /// of them, other tests would find no free port.
    pub fn connect_from(&self, runtime: &Handle, from: &str) -> io::Result<TcpStream> {
        let from = SocketAddr::new(from.parse().unwrap(), 0);
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.set_zero_linger()?;
            socket.bind(from)?;
            socket.connect(self.at).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn request(&self, method: &str, path: &str, token: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.at);
        if !token.is_empty() {
            text += &format!("Authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        [format!("{text}\r\n").as_bytes(), body].concat()
    }

    pub fn get(&self, path: &str, token: &str) -> Answer {
        self.ask("GET", path, token, &[], b"")
    }

    /// Opens a WebSocket and sends a message; returns the status and the echo.
    pub fn web_socket(&self, token: &str, said: &str) -> (u16, String) {
        self.web_socket_as(token, "Upgrade", "websocket", said)
    }

    /// The same, with the request headers of other clients.
    pub fn web_socket_as(&self, token: &str, connection: &str, upgrade: &str, said: &str) -> (u16, String) {
        self.web_socket_at("/echo", token, connection, upgrade, said)
    }

    /// The same at another path.
    pub fn web_socket_at(&self, path: &str, token: &str, connection: &str, upgrade: &str, said: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
        let handshake = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: {connection}\r\nUpgrade: \
             {upgrade}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n",
            self.at
        );
        stream.write_all(handshake.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a whole head");
            head.push(byte[0]);
        }
        let status = String::from_utf8_lossy(&head).split(' ').nth(1).and_then(|status| status.parse().ok());
        if status != Some(101) {
            return (status.unwrap_or(0), String::new());
        }
        // A text frame, masked with zeros (RFC 6455 §5.2).
        let mut frame = vec![0x81, 0x80 | said.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(said.as_bytes());
        stream.write_all(&frame).unwrap();
        let mut echo = vec![0; 2 + said.len()];
        stream.read_exact(&mut echo).expect("an echo");
        (101, String::from_utf8_lossy(&echo[2..]).into_owned())
    }
}

fn serve(directory: &TempDir, rules: &str) -> Server {
    serve_with_files(directory, rules, None)
}

/// As [`serve`], with this limit of open files.
fn serve_with_files(directory: &TempDir, rules: &str, files: Option<u32>) -> Server {
    let state = directory.path().join(format!("state-{}", fastrand::u64(..)));
    std::fs::create_dir(&state).unwrap();
    let file = state.join("headcount.toml");
    std::fs::write(&file, rules).unwrap();
    let command = files.map_or_else(|| program(&state), |files| program_with_files(&state, files));
    Server::start_as(command, &state, &["-c", file.to_str().unwrap()], &[])
}

fn unchunked(mut answer: Answer) -> Answer {
    if answer.header("transfer-encoding") == "chunked" {
        let (mut rest, mut body) = (answer.body.as_str(), String::new());
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            if size == 0 || after.len() < size {
                break;
            }
            body += &after[..size];
            rest = after[size..].trim_start_matches("\r\n");
        }
        answer.body = body;
    }
    answer
}
