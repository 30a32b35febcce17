//! The proxies, each started with the recipe that `headcount config` prints; only addresses and paths are replaced.

use crate::support::{Process, program, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A proxy that is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Caddy,
    Envoy,
    Haproxy,
}

/// What the proxy does while headcount does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenSilent {
    /// Everybody is admitted after 1.5 s, as the recipe says.
    Open,
    /// Nobody is.
    Closed,
    /// The case does not check it: on a busy machine an answer may take longer.
    Patient,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Nginx, Self::Caddy, Self::Envoy, Self::Haproxy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
        }
    }

    /// Starts it in front of `app`; `checks` is where headcount answers. Only nginx is told of more than one.
    pub fn start(
        self,
        directory: &Path,
        checks: &[SocketAddr],
        app: SocketAddr,
        when: WhenSilent,
    ) -> (Process, SocketAddr) {
        let command = |at| self.command(directory, &Places { at, checks, app }, when);
        start(self.name(), directory, command)
    }

    /// Where a proxy that is at `at` speaks HTTP/2 without TLS.
    pub fn http2_at(self, mut at: SocketAddr) -> SocketAddr {
        if matches!(self, Self::Nginx | Self::Caddy) {
            at.set_ip([127, 0, 0, 2].into());
        }
        at
    }

    fn command(self, directory: &Path, places: &Places<'_>, when: WhenSilent) -> Command {
        let (recipe, file) = (recipe_of(self.name()), directory.join(self.name()));
        let Places { at, checks, app } = places;
        let (all, checks) = (checks, &checks[0]);
        let (checks_text, app_text) = (checks.to_string(), app.to_string());
        let usual = [("127.0.0.1:7070", checks_text.as_str()), ("127.0.0.1:8080", &app_text)];
        match self {
            Self::Nginx => {
                let closed = [("return 204;", "return 403;")];
                let patient = [("timeout 1s;", "timeout 10s;"), ("timeout    1500ms;", "timeout    10s;")];
                // This version speaks one protocol at an address.
                let listen = format!("listen {at}; listen {} http2;", self.http2_at(*at));
                // As the recipe says of another header with the token.
                let named = ["Authorization ", "Authorization     "]
                    .map(|name| format!("proxy_set_header {name}$http_authorization;"))
                    .map(|line| (format!("{line} proxy_set_header X-Api-Key $http_x_api_key;"), line));
                let several = all
                    .iter()
                    .map(|checks| format!("server {checks} max_fails=256 fail_timeout=1s;"))
                    .collect::<String>();
                let one = "server 127.0.0.1:7070 max_fails=256 fail_timeout=1s;";
                let mut own = vec![("listen 80;", listen.as_str()), (one, &several)];
                own.extend(named.iter().map(|(more, line)| (line.as_str(), more.as_str())));
                // As the guide says of a class of the line.
                own.push((
                    "proxy_pass_request_headers off;",
                    "proxy_pass_request_headers off; proxy_set_header X-Plan $plan;",
                ));
                let text = put_in(&recipe, &own, &usual[1..], when, &closed, &patient);
                let (here, temporary) = (directory.display(), temporary(directory));
                let main = format!(
                    "user root; daemon off; master_process off; pid {here}/nginx.pid; error_log stderr;\n\
                     events {{ worker_connections 8192; }}\n\
                     http {{ access_log off;\nmap $request_uri $plan {{ ~^/premium/ premium; }}\n{temporary}{text}}}\n"
                );
                fs::write(&file, main).unwrap();
                let mut command = Command::new("nginx");
                command.arg("-p").arg(directory).arg("-c").arg(&file).args(["-e", "stderr"]);
                command
            }
            Self::Caddy => {
                let closed = [(
                    "# respond \"headcount does not answer\" 503\n\t\t\treverse_proxy 127.0.0.1:8080",
                    "respond \"headcount does not answer\" 503",
                )];
                let patient = [("timeout 1s\n", "timeout 10s\n"), ("timeout 1500ms\n", "timeout 10s\n")];
                // Both protocols at one address would be another case of upgrades.
                let http2 = self.http2_at(*at);
                let site = |at: &SocketAddr| format!("\nhttp://{at} {{\n\tbind {}\n", at.ip());
                let own = [
                    ("\n:80 {\n", &*site(at)),
                    ("\troute {\n", FORBIDDEN_BYTE),
                    ("\t\tforward_auth ", OWN_CLASS),
                    ("reverse_proxy 127.0.0.1:8080 {\n", "reverse_proxy 127.0.0.1:8080 {\nheader_up -X-Odd\n"),
                ];
                let text = put_in(&recipe, &own, &usual, when, &closed, &patient);
                let silent = format!("\t\t\treverse_proxy {app}\n");
                let text = text.replace(&silent, &format!("reverse_proxy {app} {{\nheader_up -X-Odd\n}}\n"));
                let (_, rules) = text.split_once(&site(at)).expect("the site");
                let text = format!("{text}{}{rules}", site(&http2));
                let global = "\n{\n\tservers {";
                assert!(text.contains(global), "the recipe has no global options");
                let options = format!(
                    "\n{{\n\tadmin off\n\tauto_https off\n\tservers {http2} {{\n\t\tprotocols h1 h2c\n\t}}\n\tservers \
                     {{"
                );
                fs::write(&file, text.replacen(global, &options, 1)).unwrap();
                let mut command = Command::new("caddy");
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file);
                command.env("XDG_DATA_HOME", directory).env("XDG_CONFIG_HOME", directory);
                command
            }
            Self::Envoy => {
                let closed = [("failure_mode_allow: true", "failure_mode_allow: false")];
                let patient = [
                    ("timeout: 1s", "timeout: 10s"),
                    ("timeout: 1.5s", "timeout: 10s"),
                    ("timeout: 5s", "timeout: 20s"),
                    ("timeout: 60s", "timeout: 60s"),
                ];
                let port = |place: &SocketAddr| format!("port_value: {}", place.port());
                let gate = format!("\"@headcount-{}\"", at.port());
                let listen = format!("address: 127.0.0.1, {} }}", port(at));
                let own = [
                    ("address: 0.0.0.0, port_value: 80 }", listen.as_str()),
                    ("\"@headcount\"", &gate),
                    ("port_value: 7070", &port(checks)),
                    ("port_value: 8080", &port(app)),
                    // As the recipe says of another header with the token.
                    ("{ \":path\", \"authorization\" }", "{ \":path\", \"authorization\", \"x-api-key\" }"),
                    ("- exact: authorization", "- exact: authorization\n                          - exact: x-api-key"),
                    // As the guide says of a class of the line.
                    ("- exact: accept\n", "- exact: accept\n                          - exact: x-plan\n"),
                    (SET_BY_ENVOY, &format!("headers:remove(\"x-plan\") {SET_X_PLAN} {SET_BY_ENVOY}")),
                ];
                let text = put_in(&recipe, &own, &[], when, &closed, &patient);
                let admin = format!("admin: {{ address: {{ pipe: {{ path: {} }} }} }}\n", admin(directory).display());
                let text = admin + &text;
                let file = file.with_extension("yaml");
                fs::write(&file, text).unwrap();
                let mut command = Command::new("envoy");
                command.arg("-c").arg(&file).args(["--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]);
                command
            }
            Self::Haproxy => {
                let closed = [("# http-request return status 503", "http-request return status 503")];
                // Its health check, too.
                let patient = [
                    ("timeout connect 1s", "timeout connect 10s"),
                    ("timeout server  1500ms", "timeout server  10s"),
                    ("inter 100ms", "inter 10s"),
                    ("nbsrv(headcount) gt 0", "always_true"),
                ];
                let listen = format!("bind {at}");
                let script = directory.join("headcount.lua").display().to_string();
                let gate = format!("abns@headcount-{}", at.port());
                let own = [
                    ("bind :80", listen.as_str()),
                    ("/etc/haproxy/headcount.lua", &script),
                    ("abns@headcount", &gate),
                    ("    http-request lua.headcount", SET_BY_HAPROXY),
                ];
                let mut lua = recipe_of("haproxy-lua").replace("abns@headcount", &gate);
                let named = r#"FORWARDED = { "authorization", "#;
                assert!(lua.contains(named), "the recipe has no {named:?}");
                lua = lua.replace(named, &format!("{named}\"x-api-key\", \"x-plan\", "));
                if when == WhenSilent::Patient {
                    lua = lua.replace("timeout = 6000 ", "timeout = 20000 ");
                }
                fs::write(&script, lua).unwrap();
                let jail = directory.join("jail");
                fs::create_dir_all(&jail).unwrap();
                let text = put_in(&recipe, &own, &usual, when, &closed, &patient);
                // As Debian runs it.
                let jailed = format!("global\n    chroot {}\n    user haproxy\n    group haproxy\n", jail.display());
                fs::write(&file, text.replacen("global\n", &jailed, 1)).unwrap();
                let mut command = Command::new("haproxy");
                command.arg("-W").arg("-f").arg(&file);
                command
            }
        }
    }
}

/// What a client that speaks HTTP/3 can send to Caddy, and no client of these tests: a control byte in a header. Caddy
/// itself puts it there on request, and the application does not get it.
const FORBIDDEN_BYTE: &str = "\troute {
\t\t@odd header X-Forbidden-Byte *
\t\trequest_header @odd X-Odd \"a\u{1}b\"
\t\trequest_header -X-Forbidden-Byte
";

/// What the guide says of a class of the line.
const OWN_CLASS: &str = "
\t\t@premium path /premium/*
\t\trequest_header -X-Plan
\t\trequest_header @premium X-Plan premium
\t\tforward_auth ";

const SET_BY_HAPROXY: &str = "    http-request del-header X-Plan
    http-request set-header X-Plan premium if { path_beg /premium/ }
    http-request lua.headcount";
const SET_BY_ENVOY: &str = "headers:remove(\"x-original-upgrade\")";
const SET_X_PLAN: &str = "if headers:get(\":path\"):find(\"^/premium/\") then headers:add(\"x-plan\", \"premium\") end";

/// The socket of Envoy's admin interface.
fn admin(directory: &Path) -> PathBuf {
    directory.join("admin")
}

/// Makes Envoy close its listeners and finish its requests, as the recipe says.
pub fn drain_envoy(directory: &Path) {
    let mut stream = UnixStream::connect(admin(directory)).unwrap();
    stream
        .write_all(b"POST /drain_listeners?inboundonly HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 OK"), "{answer}");
}

/// What the proxy has logged.
pub fn logged(directory: &Path) -> String {
    fs::read_to_string(directory.join("proxy.log")).unwrap_or_default()
}

/// Where nginx stores what does not fit into its memory.
fn temporary(directory: &Path) -> String {
    let line = |kind| format!("{kind}_temp_path {}/{kind};\n", directory.display());
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(line).concat()
}

/// An nginx that caches everything that it may cache of the answers of `behind`.
pub fn start_cache(directory: &Path, behind: SocketAddr) -> (Process, SocketAddr) {
    let directory = directory.join("cache");
    fs::create_dir(&directory).unwrap();
    start("cache", &directory, |at| {
        let (here, temporary) = (directory.display(), temporary(&directory));
        let text = format!(
            "user root; daemon off; master_process off; pid {here}/nginx.pid; error_log stderr; events {{}}\n\
             http {{ access_log off;\n{temporary}proxy_cache_path {here}/kept keys_zone=all:1m;\n\
             server {{ listen {at}; large_client_header_buffers 4 16k; location / {{\n\
             proxy_pass http://{behind}; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_cache all; \
             proxy_cache_key $request_uri; proxy_cache_valid any 1h;\n\
             add_header X-Cache $upstream_cache_status always; }} }} }}\n"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&directory).arg("-c").arg(&file).args(["-e", "stderr"]);
        command
    })
}

/// Starts a proxy on a free port, and waits until it listens.
fn start(name: &str, directory: &Path, command: impl Fn(SocketAddr) -> Command) -> (Process, SocketAddr) {
    for _ in 0..20 {
        // No system gives these ports to a program that asks for any port: nobody else listens there before the proxy.
        let at = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(12_000..30_000)));
        if TcpListener::bind(at).is_err() {
            continue;
        }
        let mut command = command(at);
        let log = fs::File::create(directory.join("proxy.log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it"));
        let mut process = Process(child);
        let up = wait_for("the proxy to listen", || match process.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => TcpStream::connect(at).is_ok().then_some(true),
        });
        if up {
            return (process, at);
        }
        let said = logged(directory);
        assert!(said.to_lowercase().contains("address already in use"), "{name} does not start:\n{said}");
    }
    panic!("{name} found no free port");
}

struct Places<'c> {
    at: SocketAddr,
    checks: &'c [SocketAddr],
    app: SocketAddr,
}

/// What `headcount config` prints.
fn recipe_of(name: &str) -> String {
    let output = program(Path::new("/nonexistent")).args(["config", name]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Each text that is replaced must be there, or the recipe has changed under the test.
fn put_in(
    recipe: &str,
    own: &[(&str, &str)],
    usual: &[(&str, &str)],
    when: WhenSilent,
    closed: &[(&str, &str)],
    patient: &[(&str, &str)],
) -> String {
    let changed: &[(&str, &str)] = match when {
        WhenSilent::Open => &[],
        WhenSilent::Closed => closed,
        WhenSilent::Patient => patient,
    };
    let mut text = recipe.to_owned();
    for (from, to) in changed.iter().chain(own).chain(usual) {
        assert!(text.contains(from), "the recipe has no {from:?}");
        text = text.replace(from, to);
    }
    text
}
