//! The commands and configurations of the README and the book, run as they are written there.
#![cfg(feature = "server")]

mod support;

use std::net::TcpStream;
use std::process::{Command, Stdio};
use support::{Process, wait_for};

/// The code blocks of a page in one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().trim().to_owned()).collect()
}

#[test]
fn three_curl_lines_show_the_main_job() {
    let shell = blocks("README.md", "sh");
    let (serve, curls) = (&shell[0], shell[1].lines().collect::<Vec<_>>());
    assert!(serve.starts_with("cargo headcount serve") && curls.len() == 3);
    let free = TcpStream::connect("127.0.0.1:7070").is_err();
    assert!(free, "port 7070 is taken; the README's lines need it");

    let state = tempfile::tempdir().unwrap();
    // Built first, so that the wait below is for the server alone.
    assert!(
        Command::new("cargo")
            .args(["build", "--release", "--quiet", "--features", "server"])
            .status()
            .unwrap()
            .success()
    );
    let words: Vec<_> = serve.split(' ').collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("XDG_STATE_HOME", state.path()).env_remove("STATE_DIRECTORY");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // cargo does not forward signals, and the server must end with the test.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let group = Group(Process(command.spawn().unwrap()));
    wait_for("the server", || TcpStream::connect("127.0.0.1:7070").is_ok().then_some(()));

    let touches = blocks("docs/reference/http.md", "sh").into_iter().find(|block| block.contains("/v1/touch")).unwrap();
    assert_eq!(touches.lines().count(), 3);
    for line in curls.into_iter().chain(touches.lines()) {
        let (curl, comment) = line.split_once('#').unwrap();
        let output = Command::new("sh").args(["-c", curl]).output().unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        let status = &comment.trim()[..3];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}\n{answer}");
        assert_eq!(answer.contains("\"unseen\":[1]"), comment.contains("\"unseen\":[1]"), "{line}\n{answer}");
        assert_eq!(answer.contains("retry-after: "), comment.contains("Retry-After"), "{line}\n{answer}");
    }
    drop(group);
}

struct Group(Process);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.0.id());
        let _ = Command::new("kill").args(["-TERM", "--", &group]).status();
    }
}

#[test]
fn the_configurations_of_the_book_are_read() {
    let state = tempfile::tempdir().unwrap();
    let key = state.path().join("jwt.key");
    std::fs::write(&key, "thirty-two bytes or more, said RFC 7518").unwrap();
    let of = |page: &str| blocks(&format!("docs/{page}.md"), "toml").join("\n");
    let users = of("guide/users").replace("/etc/headcount/jwt.pem", key.to_str().unwrap());
    let file = state.path().join("headcount.toml");
    let secret = "[token]\nsecret = \"sixteen bytes at least\"";
    std::fs::write(&file, [secret, &users, &of("guide/limiting"), &of("quickstart/proxy")].join("\n")).unwrap();
    let arguments = ["-c", file.to_str().unwrap(), "--redis", "redis://127.0.0.1:1"];
    let server = support::Server::start(state.path(), &arguments, &[]);
    let status = server.status();
    assert_eq!(status["max_active_users"], 20_000);
    let names: Vec<_> = status["limits"].as_array().unwrap().iter().map(|limit| limit["name"].clone()).collect();
    assert_eq!(names, ["newcomers", "uploads", "guesses"]);
}
