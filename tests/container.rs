//! The image and the files that start it, without a container engine: the tests recreate its user, home, root and
//! environment.
#![cfg(feature = "server")]

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{Process, Server, get, program, wait_for};
use tempfile::{TempDir, tempdir};

const NOBODY: u32 = 65_532;

fn ops(name: &str) -> String {
    format!("{}/examples/ops/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The program as in a container: a user without a name, whose home is the root directory. `before` runs as root.
fn contained(before: &str) -> Command {
    let mut command = Command::new("unshare");
    let as_nobody = format!(
        "exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --bounding-set -all \"$@\""
    );
    if is_root() {
        command.args(["--mount", "sh", "-c", &format!("set -e; {before} {as_nobody}"), "sh"]);
    } else {
        command = Command::new("env");
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HEADCOUNT") {
            command.env_remove(name);
        }
    }
    command.arg(env!("CARGO_BIN_EXE_headcount")).env("HOME", "/");
    for name in ["STATE_DIRECTORY", "XDG_STATE_HOME", "XDG_DATA_HOME", "USER", "LOGNAME"] {
        command.env_remove(name);
    }
    command
}

/// A directory that the container's user owns.
fn volume() -> TempDir {
    let directory = tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
    if is_root() {
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    directory
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const ONE_SEAT: [&str; 2] = ["--max-active-users", "1"];

#[test]
fn a_container_without_a_volume_serves_and_says_what_it_cannot_keep() {
    let logs = tempdir().unwrap();
    let server = Server::start_as(contained(""), logs.path(), &ONE_SEAT, &[]);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("newcomer", "rejected"));
    let warning = "the state directory /.local/state/headcount cannot be used";
    let log = server.logged();
    assert!(
        log.contains("WARN") && log.contains(warning) && log.contains("a restart forgets the active users"),
        "{log}"
    );
    let mut validate = contained("");
    let validated = validate.arg("validate").env("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "1").output().unwrap();
    assert_eq!(validated.status.code(), Some(0), "{}", said(&validated));
    assert!(said(&validated).contains(&format!("warning: {warning}")), "{}", said(&validated));
    assert!(!Path::new("/.local/state/headcount").exists());
    // The configuration asks for it: no warning.
    let mut validate = contained("");
    validate.env("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "1").env("HEADCOUNT__SNAPSHOT__FILE", "");
    let validated = validate.arg("validate").output().unwrap();
    assert!(validated.status.success() && !said(&validated).contains("state directory"), "{}", said(&validated));
    // A path that the configuration names must be writable.
    let configured = [("HEADCOUNT__SNAPSHOT__FILE", "/nowhere/ring.snapshot")];
    let mut refused = contained("");
    let refused = refused.args(["serve", "--max-active-users", "1"]).envs(configured).output().unwrap();
    assert!(refused.status.code() == Some(2) && said(&refused).contains("snapshot.file"), "{}", said(&refused));
}

#[test]
fn a_volume_keeps_the_active_users_over_a_restart() {
    let (logs, volume) = (tempdir().unwrap(), volume());
    // As systemd sets it: several paths separated by colons, of which the first counts.
    let directories = format!("{}:/elsewhere", volume.path().display());
    let environment = [("STATE_DIRECTORY", directories.as_str())];
    let mut server = Server::start_as(contained(""), logs.path(), &ONE_SEAT, &environment);
    assert_eq!(server.decide("A"), "newcomer");
    assert!(!server.logged().contains("state directory"), "{}", server.logged());
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0));
    assert!(volume.path().join("ring.snapshot").exists() && volume.path().join("fingerprint.key").exists());
    let server = Server::start_as(contained(""), logs.path(), &ONE_SEAT, &environment);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
}

#[test]
fn a_read_only_root_and_a_directory_of_others_are_warnings() {
    let logs = tempdir().unwrap();
    let read_only = volume();
    let place = read_only.path().display();
    // The same directory on a file system that is mounted read-only.
    let mount = format!("mount --bind {place} {place}; mount -o remount,bind,ro {place};");
    std::fs::set_permissions(read_only.path(), PermissionsExt::from_mode(if is_root() { 0o700 } else { 0o500 }))
        .unwrap();
    let mine = tempdir().unwrap();
    std::fs::set_permissions(mine.path(), PermissionsExt::from_mode(0o555)).unwrap();
    // An earlier run as another user left its key.
    let foreign = volume();
    let key = foreign.path().join("fingerprint.key");
    std::fs::write(&key, "the key of somebody else").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(if is_root() { 0o600 } else { 0o000 })).unwrap();
    for (before, directory) in [(mount.as_str(), read_only.path()), ("", mine.path()), ("", foreign.path())] {
        let name = directory.to_str().unwrap();
        let server = Server::start_as(contained(before), logs.path(), &ONE_SEAT, &[("STATE_DIRECTORY", name)]);
        assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("newcomer", "rejected"));
        let log = server.logged();
        assert!(log.contains(&format!("the state directory {name} cannot be used")), "{log}");
    }
}

/// The instructions of the last stage.
fn image() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(ops("Dockerfile")).unwrap().replace("\\\n", " ");
    let last = &text[text.rfind("\nFROM ").unwrap()..];
    let lines = last.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(one, rest)| (one.to_owned(), rest.to_owned())).collect()
}

#[test]
fn the_image_listens_for_others_keeps_its_state_in_a_volume_and_checks_its_health() {
    let image = image();
    let of = |name: &str| {
        let found = image.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        found.collect::<Vec<_>>()
    };
    let environment: BTreeMap<_, _> = of("ENV").into_iter().filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!(of("USER"), [format!("{NOBODY}:{NOBODY}")]);
    assert_eq!(of("VOLUME"), [environment["STATE_DIRECTORY"]]);
    assert_eq!(environment["HEADCOUNT__SERVER__LISTEN"], "0.0.0.0:7070");
    // Every base image has a version.
    let text = std::fs::read_to_string(ops("Dockerfile")).unwrap();
    let bases: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("ARG ")?.split_once('=')).collect();
    assert!(bases.len() == 2 && bases.iter().all(|(_, base)| base.matches('.').count() >= 1), "{bases:?}");
    // Dependencies are built before the sources are there.
    let (dependencies, sources) = (text.find("COPY Cargo.toml Cargo.lock"), text.find("COPY . ."));
    assert!(dependencies.is_some() && dependencies < sources);

    // The program can do what HEALTHCHECK asks for, whether the admin listener is reachable from outside or not.
    let check = of("HEALTHCHECK")[0];
    let check: Vec<String> = serde_json::from_str(check.split_once("CMD ").unwrap().1).unwrap();
    assert_eq!(check[0], "headcount");
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &ONE_SEAT, &[]);
    let listen = format!("0.0.0.0:{}", server.admin.port());
    let healthy = |more: &[&str]| {
        let mut verb = program(state.path());
        verb.args(&check[1..]).args(more).env("HEADCOUNT__ADMIN__LISTEN", &listen);
        let output = verb.output().unwrap();
        (output.status.code(), said(&output))
    };
    support::wait_for("readiness", || server.is_ready().then_some(()));
    for more in [&[][..], &["--ready"]] {
        assert_eq!(healthy(more).0, Some(0), "{:?}", healthy(more));
    }
    assert_eq!(get(server.admin, "/livez", &[]).status, 200);
    server.process.signal("-KILL");
    server.process.wait();
    let (code, text) = healthy(&[]);
    assert!(code == Some(1) && text.contains("/livez"), "{code:?} {text}");
}

#[test]
fn the_image_is_built_from_what_it_needs() {
    let ignored = std::fs::read_to_string(".dockerignore").unwrap();
    for name in ["target", ".git", "tests/__fuzz__"] {
        assert!(ignored.lines().any(|line| line == name), "{name}");
    }
    // For the layer with the dependencies: cargo reads the manifest without the files that are left out.
    let text = std::fs::read_to_string(ops("Dockerfile")).unwrap();
    let awk = text.split("awk '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    let place = tempdir().unwrap();
    let manifest = Command::new("awk").args([awk, "Cargo.toml"]).output().unwrap();
    assert!(manifest.status.success(), "{}", said(&manifest));
    std::fs::write(place.path().join("Cargo.toml"), manifest.stdout).unwrap();
    std::fs::copy("Cargo.lock", place.path().join("Cargo.lock")).unwrap();
    std::fs::write(place.path().join("README.md"), "").unwrap();
    std::fs::create_dir(place.path().join("src")).unwrap();
    std::fs::write(place.path().join("src/lib.rs"), "").unwrap();
    std::fs::write(place.path().join("src/main.rs"), "fn main() {}").unwrap();
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]);
    let metadata = metadata.current_dir(place.path()).output().unwrap();
    assert!(metadata.status.success(), "{}", said(&metadata));
}

/// A file of YAML documents.
fn documents(name: &str) -> Vec<Value> {
    let tool = std::env::var("HEADCOUNT_SCHEMATHESIS").expect("HEADCOUNT_SCHEMATHESIS names it: ./test sets it");
    // PyYAML is installed for it.
    let python = Path::new(&tool).with_file_name("python");
    let program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = Command::new(python).args(["-c", program, &ops(name)]).output().unwrap();
    assert!(output.status.success(), "{name}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Gives a server's environment to `validate`, with real files and secrets instead of those that it names.
fn validated(environment: &BTreeMap<String, String>) -> String {
    let state = tempdir().unwrap();
    let mut validate = program(state.path());
    for (name, value) in environment {
        let mut value = value.clone();
        if name.ends_with("_FILE") {
            let file = state.path().join(name);
            std::fs::write(&file, "a secret of thirty-two bytes, say").unwrap();
            value = file.display().to_string();
        }
        if value.starts_with("${") {
            value = "a secret of thirty-two bytes, say".into();
        }
        validate.env(name, value);
    }
    let output = validate.arg("validate").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{environment:?}: {}", said(&output));
    said(&output)
}

#[test]
fn compose_starts_three_servers_and_nginx_with_the_printed_recipe() {
    let [compose] = &documents("compose.yml")[..] else { panic!("one document") };
    let services = compose["services"].as_object().unwrap();
    let servers: Vec<_> = services.iter().filter(|(name, _)| name.starts_with("headcount")).collect();
    assert_eq!(servers.len(), 3);
    for (name, server) in servers {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let own = server["environment"].as_object().unwrap().iter();
        let mut environment: BTreeMap<_, _> = own.map(|(name, value)| (name.clone(), text(value))).collect();
        assert_eq!(environment["HEADCOUNT__FLEET__NODE"], *name);
        let command: Vec<_> = server["command"].as_array().unwrap().iter().map(text).collect();
        assert_eq!(command[..2], ["serve", "--max-active-users"]);
        environment.insert("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS".into(), command[2].clone());
        let said = validated(&environment);
        assert!(!said.contains("warning: "), "{said}");
        assert_eq!((&server["read_only"], &server["cap_drop"][0]), (&true.into(), &"ALL".into()));
        assert!(server["mem_limit"].is_string());
    }
    // nginx's configuration is the printed recipe; only the addresses are changed.
    let command = services["nginx"]["command"][2].as_str().unwrap().replace("$$", "$");
    let place = tempdir().unwrap();
    let recipe = Command::new(env!("CARGO_BIN_EXE_headcount")).args(["config", "nginx"]).output().unwrap();
    std::fs::write(place.path().join("nginx.conf"), &recipe.stdout).unwrap();
    let sed = command.split("&&").next().unwrap();
    let sed = sed.replace("/recipe/nginx.conf", "nginx.conf").replace("/etc/nginx/conf.d/default.conf", "changed.conf");
    assert!(Command::new("sh").args(["-c", &sed]).current_dir(place.path()).status().unwrap().success());
    let changed = std::fs::read_to_string(place.path().join("changed.conf")).unwrap();
    let recipe = String::from_utf8(recipe.stdout).unwrap();
    let differ: Vec<_> = recipe.lines().zip(changed.lines()).filter(|(one, other)| one != other).collect();
    assert_eq!((differ.len(), recipe.lines().count()), (2, changed.lines().count()), "{differ:?}");
    for name in ["headcount-1:7070", "headcount-2:7070", "headcount-3:7070", "app:80"] {
        assert!(changed.contains(name) && services.contains_key(name.split(':').next().unwrap()), "{name}");
    }
    // nginx accepts it, with addresses instead of host names that do not resolve here.
    let known = ["headcount-1", "headcount-2", "headcount-3", "app"]
        .into_iter()
        .fold(changed, |text, name| text.replace(&format!("server {name}:"), "server 127.0.0.1:"));
    let whole = format!("pid nginx.pid; error_log stderr; events {{}} http {{ access_log off; {known} }}");
    let whole = whole.replace("listen 80;", "listen 127.0.0.1:18080;");
    std::fs::write(place.path().join("whole.conf"), whole).unwrap();
    let mut nginx = Command::new("nginx");
    let tested = nginx.args(["-t", "-p"]).arg(place.path()).args(["-c", "whole.conf"]).output().unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
}

/// The servers of an overlay of `compose.yml`, each on a port of its own instead of a host of its own.
struct Overlay {
    services: BTreeMap<String, Value>,
    ports: BTreeMap<String, u16>,
    processes: BTreeMap<String, Process>,
    directory: TempDir,
}

impl Overlay {
    /// Starts all servers of Redis, and the sentinels, with their own commands.
    fn start(name: &str) -> Self {
        let [overlay] = &documents(name)[..] else { panic!("one document") };
        let services: BTreeMap<_, _> = overlay["services"].as_object().unwrap().clone().into_iter().collect();
        let stores = services.keys().filter(|name| name.starts_with("redis") || name.starts_with("sentinel"));
        let ports = stores.map(|name| (name.clone(), free_port())).collect();
        let (processes, directory) = (BTreeMap::new(), tempdir().unwrap());
        let mut overlay = Self { services, ports, processes, directory };
        let (sentinels, servers): (Vec<_>, Vec<_>) =
            overlay.ports.clone().into_keys().partition(|name| name.starts_with("sentinel"));
        overlay.run_all(servers);
        if !sentinels.is_empty() {
            // They look for replicas every ten seconds.
            wait_for("two replicas", || {
                overlay.ask::<String>("redis", &["INFO", "replication"])?.contains("slaves:2").then_some(())
            });
        }
        overlay.run_all(sentinels);
        overlay
    }

    fn run_all(&mut self, names: Vec<String>) {
        for name in names {
            let process = Process(self.run(&name));
            self.processes.insert(name, process);
        }
    }

    /// Runs the command of a service here.
    fn run(&self, name: &str) -> std::process::Child {
        let words = self.services[name]["command"].as_array().unwrap().iter();
        let words: Vec<_> = words.map(|word| self.local(word.as_str().unwrap())).collect();
        let directory = self.directory.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let mut command = Command::new(&words[0]);
        command.current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let port = self.ports.get(name).map(u16::to_string).unwrap_or_default();
        match words[0].as_str() {
            "redis-server" => {
                let mut words: Vec<_> = words.into_iter().skip(1).collect();
                if let Some(at) = words.iter().position(|word| word == "--replicaof") {
                    words[at + 2] = self.ports["redis"].to_string();
                }
                command.args(words).args(["--bind", "127.0.0.1", "--port", &port]);
            }
            "sh" => {
                let text = words[2].replace("/tmp/", "./");
                let own = format!("'bind 127.0.0.1' 'port {port}'");
                command.arg("-c").arg(text.replace("'port 26379'", &own));
            }
            _ => _ = command.args(&words[1..]),
        }
        command.spawn().unwrap()
    }

    /// The same text with addresses of this machine.
    fn local(&self, text: &str) -> String {
        if self.ports.contains_key(text) {
            return "127.0.0.1".into();
        }
        self.ports.iter().fold(text.to_owned(), |text, (name, port)| {
            let here = format!("127.0.0.1:{port}");
            let text = text.replace(&format!("{name}:6379"), &here).replace(&format!("{name}:26379"), &here);
            text.replace(&format!(" {name} 6379"), &format!(" 127.0.0.1 {port}"))
        })
    }

    /// A server of headcount with the overlay's environment, after its first round.
    fn headcount(&self, state: &Path) -> Server {
        let servers = ["headcount-1", "headcount-2", "headcount-3"].map(|name| &self.services[name]["environment"]);
        assert!(servers[0] == servers[1] && servers[0] == servers[2]);
        let of = servers[0].as_object().unwrap().iter();
        let mut environment: BTreeMap<_, _> = of.map(|(key, text)| (key, self.local(text.as_str().unwrap()))).collect();
        let (key, every) = ("HEADCOUNT__TOKEN__SECRET".to_owned(), "HEADCOUNT__FLEET__SYNC_EVERY".to_owned());
        environment.insert(&key, "the key of the fleet".into());
        environment.insert(&every, "50ms".into());
        let environment: Vec<_> = environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let server = Server::start(state, &["--max-active-users", "5"], &environment);
        wait_for("a round", || (server.status()["sync"]["ok"] == true).then_some(()));
        server
    }

    /// Asks a server of Redis or a sentinel, if it answers.
    fn ask<T: redis::FromRedisValue>(&self, name: &str, words: &[&str]) -> Option<T> {
        let mut client = redis::Client::open(format!("redis://127.0.0.1:{}", self.ports[name])).unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut client).ok()
    }

    /// The service that a server of headcount talks to.
    fn store_of(&self, server: &Server) -> Option<&str> {
        let address = server.status()["sync"]["server"].as_str()?.to_owned();
        let found = self.ports.iter().find(|(_, port)| address == format!("127.0.0.1:{port}"))?;
        Some(found.0)
    }
}

/// A port that is free, and of which a node of a cluster can use the one 10,000 above.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

#[test]
fn the_sentinels_of_compose_lead_to_the_master_and_to_its_successor() {
    let (state, overlay) = (tempdir().unwrap(), Overlay::start("compose.sentinel.yml"));
    assert_eq!(overlay.processes.len(), 6);
    let server = overlay.headcount(state.path());
    assert_eq!(overlay.store_of(&server), Some("redis"));
    assert_eq!(server.check("alice").status, 200);
    // The sentinels know each other and the replicas.
    for sentinel in ["sentinel-1", "sentinel-2", "sentinel-3"] {
        wait_for("a sentinel that knows the others", || {
            let fields: BTreeMap<String, String> = overlay.ask(sentinel, &["SENTINEL", "MASTER", "mymaster"])?;
            (fields["num-slaves"] == "2" && fields["num-other-sentinels"] == "2").then_some(())
        });
    }
    overlay.processes["redis"].signal("-KILL");
    let successor = wait_for("a successor", || {
        let store = overlay.store_of(&server).filter(|store| *store != "redis")?;
        (server.status()["sync"]["ok"] == true).then(|| store.to_owned())
    });
    assert!(["redis-2", "redis-3"].contains(&successor.as_str()), "{successor}");
    assert!(["seen", "active"].contains(&server.decide("alice").as_str()));
    wait_for("the server to know its users", || server.is_ready().then_some(()));
    let ready = get(server.admin, "/readyz", &[]);
    let store = format!("store: redis at 127.0.0.1:{}; the last round", overlay.ports[&successor]);
    assert!(ready.body.starts_with("ready\n") && ready.body.contains(&store), "{ready:?}");
    assert!(ready.body.ends_with("failovers seen: 1\n"), "{ready:?}");
    let probe = get(server.admin, "/readyz", &[("Host", "probe.example")]);
    assert_eq!((probe.status, probe.body.as_str()), (200, "ready\n"), "only operators learn where the store is");
}

#[test]
fn the_nodes_of_compose_become_a_cluster() {
    let (state, overlay) = (tempdir().unwrap(), Overlay::start("compose.cluster.yml"));
    assert_eq!(overlay.processes.len(), 6);
    for port in overlay.ports.values() {
        wait_for("a node", || std::net::TcpStream::connect(("127.0.0.1", *port)).ok());
    }
    let made = overlay.run("cluster").wait().unwrap();
    assert!(made.success(), "{made}");
    let server = overlay.headcount(state.path());
    assert!(["redis", "redis-2", "redis-3"].contains(&overlay.store_of(&server).unwrap()));
    assert_eq!(server.check("alice").status, 200);
}

#[test]
fn a_pod_has_limits_and_only_the_rights_that_it_needs() {
    let documents = documents("kubernetes.yml");
    let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Deployment", "NetworkPolicy", "NetworkPolicy"]);
    let pod = &documents[0]["spec"]["template"];
    // A sidecar, which ends after the game.
    let container = &pod["spec"]["initContainers"][0];
    assert_eq!((&container["name"], &container["restartPolicy"]), (&json!("headcount"), &json!("Always")));
    let rights = &container["securityContext"];
    assert_eq!(rights["runAsUser"], NOBODY);
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    assert_eq!(rights["seccompProfile"]["type"], "RuntimeDefault");
    for (right, is_so) in
        [("runAsNonRoot", true), ("readOnlyRootFilesystem", true), ("allowPrivilegeEscalation", false)]
    {
        assert_eq!(rights[right], is_so, "{right}");
    }
    assert!(container["resources"]["limits"]["memory"].is_string());
    for policy in &documents[1..] {
        let selected = &policy["spec"]["podSelector"]["matchLabels"]["app"];
        assert!(selected == "redis" || *selected == pod["metadata"]["labels"]["app"], "{selected}");
    }
    let given = container["env"].as_array().unwrap();
    let pairs = given.iter().map(|it| {
        let value = it["value"].as_str().unwrap_or("game-0");
        (it["name"].as_str().unwrap().to_owned(), value.to_owned())
    });
    let said = validated(&pairs.collect());
    assert!(!said.contains("warning: "), "{said}");
}
