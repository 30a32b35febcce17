//! Tests of the sources themselves: the layout, the language, the map of the files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by floor, as ARCHITECTURE.md shows them. A file uses only its own module and floors below it.
const FLOORS: [&[&str]; 9] = [
    &[
        "time",
        "threads",
        "claim",
        "fingerprint",
        "secret",
        "token_source",
        "limiter_status",
        "failpoints",
        "reason",
        "recent",
        "text",
    ],
    &["store_error", "bloom", "jwt", "line", "pass", "fleet_mac", "room", "sharded", "waiting_page"],
    &["ring", "config", "what_if"],
    &["snapshot"],
    &["headcount"],
    &["round", "redis_link"],
    &["sync", "limit", "metrics"],
    &["admin", "layer", "players"],
    &["server"],
];

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> BTreeMap<PathBuf, String> {
    files(Path::new("src"), ".rs").into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// `src/ring/codec.rs` → `ring`.
fn module(path: &Path) -> String {
    let first = path.components().nth(1).unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules of this crate that a source names; its unit tests may name more.
fn uses(source: &str) -> Vec<String> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = code.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    named.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn a_file_uses_only_floors_below_it() {
    for (path, source) in sources() {
        let own = module(&path);
        if own == "lib" || own == "main" || path.ends_with("tests.rs") {
            continue;
        }
        let own_floor = floor(&own).unwrap_or_else(|| panic!("{} stands on no floor", path.display()));
        for used in uses(&source).into_iter().filter(|used| *used != own) {
            let Some(used_floor) = floor(&used) else { continue };
            assert!(used_floor < own_floor, "{} (floor {own_floor}) uses {used} (floor {used_floor})", path.display());
        }
    }
}

/// `src/layer/judge.rs` → `["layer", "judge"]`.
fn module_path(path: &Path) -> Vec<String> {
    let inside = path.strip_prefix("src").unwrap().with_extension("");
    inside.iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// The paths that a source names from `crate`, `self` or `super` on, as far as the first `{` or the first name that is
/// no module, and each name within the braces.
fn named_paths(own: &[String], source: &str) -> Vec<Vec<String>> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let code: String =
        product.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(|c: char| is_name(c) || c == ':') {
                continue;
            }
            let mut path: Vec<String> = if start == "crate::" { Vec::new() } else { own.to_vec() };
            let mut rest = &code[at..];
            loop {
                let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
                match name.as_str() {
                    "super" => _ = path.pop(),
                    "crate" | "self" => {}
                    _ => path.push(name.clone()),
                }
                rest = &rest[name.len()..];
                match rest.strip_prefix("::") {
                    Some(after) => rest = after,
                    None => break,
                }
                if let Some(braced) = rest.strip_prefix('{') {
                    let names = braced.split('}').next().unwrap().split(',');
                    found.extend(names.map(|name| {
                        let first = name.trim().chars().take_while(|c| is_name(*c)).collect();
                        path.iter().cloned().chain([first]).collect()
                    }));
                    break;
                }
            }
            found.push(path);
        }
    }
    found
}

/// The files that each file uses. A file that uses a name of the module around it is a part of that module: such uses
/// are left out.
fn file_uses() -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let sources: BTreeMap<_, _> = sources()
        .into_iter()
        .map(|(path, source)| (module_path(&path), source))
        .filter(|(path, _)| !["lib", "main", "tests"].contains(&path.last().unwrap().as_str()))
        .collect();
    let file_of = |mut path: Vec<String>| {
        while !path.is_empty() && !sources.contains_key(&path) {
            path.pop();
        }
        path
    };
    let uses = |own: &Vec<String>, source: &String| -> BTreeSet<Vec<String>> {
        let files = named_paths(own, source).into_iter().map(file_of);
        files.filter(|used| !used.is_empty() && !own.starts_with(used)).collect()
    };
    sources.iter().map(|(own, source)| (own.clone(), uses(own, source))).collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let uses = file_uses();
    assert!(uses[&vec!["layer".to_owned(), "judge".to_owned()]].len() > 10, "the uses of a file are found");
    for start in uses.keys() {
        let mut reached = BTreeMap::new();
        let mut next: Vec<_> = uses[start].iter().map(|used| (used, start)).collect();
        while let Some((file, from)) = next.pop() {
            if reached.contains_key(file) {
                continue;
            }
            reached.insert(file, from);
            next.extend(uses[file].iter().map(|used| (used, file)));
        }
        if let Some(from) = reached.get(start) {
            panic!("{} uses files that lead to {}, which uses it", start.join("/"), from.join("/"));
        }
    }
}

/// The files in which people read code or comments.
fn texts() -> Vec<(PathBuf, String)> {
    let folders =
        [("src", ".rs"), ("tests", ".rs"), ("examples", ".rs"), ("benches", ".rs"), ("lua", ".lua"), ("sql", ".sql")];
    let paths = folders.iter().flat_map(|(folder, ending)| files(Path::new(folder), ending));
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn no_line_is_longer_than_120_columns() {
    for (path, text) in texts() {
        for (nth, line) in text.lines().enumerate() {
            // A row of a table cannot be broken.
            let is_row = ["//! |", "/// |"].iter().any(|row| line.trim_start().starts_with(row));
            assert!(is_row || line.chars().count() <= 120, "{}:{}", path.display(), nth + 1);
        }
    }
}

/// Phrases that are translated word for word from another language, and what to write instead.
const IDIOMS: [(&str, &str); 17] = [
    ("who is in", "the active users"),
    ("whoever", "a client that, everybody who"),
    ("let in", "admitted"),
    ("lets in", "admits"),
    ("gets in", "is admitted"),
    ("get in", "are admitted"),
    ("turned away", "rejected"),
    ("turns newcomers away", "rejects newcomers"),
    ("the house", "the room, the fleet, the seats"),
    ("at the door", "arriving"),
    ("all the same", "still"),
    ("heed", "apply, follow"),
    ("none of ours", "not written by a server"),
    ("makes no sense", "is invalid"),
    ("unless said", "by default"),
    ("operator's word", "override"),
    ("in vain", "without success"),
];

#[test]
fn idioms_do_not_come_back() {
    let folders = ["src", "tests", "examples", "benches", "lua", "sql", "docs"];
    let endings = [".rs", ".js", ".cjs", ".html", ".lua", ".sql", ".py", ".conf", ".md"];
    let mut texts: Vec<_> = (folders.iter().copied())
        .flat_map(|folder| endings.iter().flat_map(move |ending| files(Path::new(folder), ending)))
        .filter(|path| path != Path::new(file!()))
        .collect();
    texts.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(PathBuf::from));
    let mut found = Vec::new();
    for path in texts {
        // A phrase may be broken over two lines of a comment.
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_').collect();
        let words = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        for (idiom, better) in IDIOMS {
            if format!(" {words} ").contains(&format!(" {idiom} ")) {
                found.push(format!("{}: \"{idiom}\"; write: {better}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_map_of_the_files_is_complete() {
    let map = fs::read_to_string("ARCHITECTURE.md").unwrap();
    for path in sources().keys() {
        let own = module(path);
        assert!(own == "lib" || own == "main" || map.contains(&format!("`{own}`")), "ARCHITECTURE.md lacks {own}");
    }
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    for (path, source) in sources() {
        assert!(
            path.ends_with("tests.rs") || source.starts_with("//!") || source.starts_with("#!"),
            "{}",
            path.display()
        );
    }
    for path in files(Path::new("lua"), ".lua") {
        let script = fs::read_to_string(&path).unwrap();
        assert!(script.starts_with("-- "), "{}", path.display());
        // A part of a script takes nothing and returns nothing.
        if ["versions.lua", "seats.lua", "line.lua"].iter().any(|part| path.ends_with(part))
            || path.starts_with("lua/limit/")
        {
            continue;
        }
        for part in ["-- KEYS[1]", "-- ARGV[1]", "-- Returns", "-- Atomic"] {
            assert!(script.lines().any(|line| line.starts_with(part)), "{} lacks {part:?}", path.display());
        }
    }
}

#[test]
fn every_sql_file_says_what_it_takes_and_returns_and_why_it_is_atomic() {
    for path in files(Path::new("sql"), ".sql") {
        let text = fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        for part in ["eturns ", "-- Atomic: "] {
            assert!(head.iter().any(|line| line.contains(part)), "{} lacks {part:?}", path.display());
        }
    }
}

/// The commands that scripts may use. Redis 7.0 and 8.2 and Valkey 8.1 run them in the tests. KeyDB and Dragonfly have
/// all of them, by their sources. Dragonfly forbids `ROLE`, `SCRIPT` and `AUTH` in scripts.
const COMMANDS_IN_SCRIPTS: [&str; 36] = [
    "APPEND",
    "DEL",
    "GET",
    "GETRANGE",
    "HDEL",
    "HGET",
    "HGETALL",
    "HINCRBY",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HSET",
    "HSTRLEN",
    "LLEN",
    "LPUSH",
    "LRANGE",
    "LSET",
    "LTRIM",
    "MGET",
    "PERSIST",
    "PEXPIRE",
    "PTTL",
    "RENAME",
    "RPUSH",
    "SET",
    "STRLEN",
    "TIME",
    "TYPE",
    "ZADD",
    "ZCOUNT",
    "ZRANGE",
    "ZREM",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANGEBYSCORE",
    "ZSCORE",
];

/// The commands that this script calls, and the text behind each.
fn calls(script: &str) -> impl Iterator<Item = (&str, &str)> {
    // `read` and `write` are functions of scripts that call the command that they are told.
    let senders = ["redis.call", "redis.pcall", " read", " write"];
    let parts = senders.into_iter().flat_map(|sender| script.split(sender).skip(1));
    parts.filter_map(|part| part.strip_prefix("('")?.split_once('\''))
}

/// The guide's Redis user may send every command of the scripts, and `headcount validate --live` tries it.
#[test]
fn the_guides_redis_user_may_send_what_the_scripts_send() {
    let guide = fs::read_to_string("docs/guide/redis.md").unwrap();
    let rules = guide.lines().find(|line| line.starts_with("user ")).unwrap();
    let tried = fs::read_to_string("src/server/validate.rs").unwrap();
    for path in files(Path::new("lua"), ".lua") {
        let is_limit = path.starts_with("lua/limit") || path.ends_with("limit.lua");
        for (command, _) in calls(&fs::read_to_string(&path).unwrap()) {
            let right = format!("+{}", command.to_lowercase());
            let allows = |text: &str| text.split([' ', '`', '\n']).any(|word| word == right);
            let is_told = allows(rules) || is_limit && allows(&guide);
            assert!(is_told, "{}: docs/guide/redis.md does not allow {command}", path.display());
            let is_tried = is_limit || calls(&tried).any(|(it, _)| it == command);
            assert!(is_tried, "{}: src/server/validate.rs does not try {command}", path.display());
        }
    }
}

/// Engines that split their keys among threads or nodes let a script use only the keys that its call names.
#[test]
fn scripts_use_commands_that_every_engine_allows_on_keys_that_the_call_names() {
    let mut scripts: Vec<_> = files(Path::new("lua"), ".lua");
    scripts.push("src/server/validate.rs".into());
    let mut checked = 0;
    for path in scripts {
        let text = fs::read_to_string(&path).unwrap();
        for (command, rest) in calls(&text) {
            assert!(COMMANDS_IN_SCRIPTS.contains(&command), "{}: {command}", path.display());
            checked += 1;
            if command == "TIME" {
                continue;
            }
            let key = rest.trim_start_matches([',', ' ', '\\', '\n']).split([',', ')', '[']).next().unwrap();
            let from_call = ["KEYS", "epoch.key", "key", "ledger", "line.arrivals", "log", "slot", "st.key", "staged"];
            let is_named = from_call.contains(&key) || ["state", "step.key", "to.key"].contains(&key);
            assert!(is_named, "{}: {command} {key}", path.display());
        }
    }
    assert!(checked > 80, "{checked}");
}

#[test]
fn the_quickstart_is_short_and_stands_in_the_readme() {
    let example = fs::read_to_string("examples/quickstart.rs").unwrap();
    assert!(example.lines().count() <= 25);
    let readme = fs::read_to_string("README.md").unwrap();
    for line in ["headcount.layer()", ".nest_service(\"/admin\", headcount.admin_router()?)", "axum::serve("] {
        assert!(example.contains(line) && readme.contains(line), "{line}");
    }
}

#[test]
fn the_package_holds_what_the_sources_include_and_no_corpus() {
    let mut list = std::process::Command::new(env!("CARGO"));
    let listed = list.args(["package", "--list", "--allow-dirty", "--offline"]).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let packed: Vec<_> = listed.lines().collect();
    assert!(!packed.iter().any(|file| file.contains("__fuzz__")), "the corpus of the fuzz targets is packed");
    for (path, source) in sources() {
        for included in source.split("include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let mut file = path.parent().unwrap().to_owned();
            for step in included.split('/') {
                match step {
                    ".." => assert!(file.pop()),
                    step => file.push(step),
                }
            }
            let name = file.to_string_lossy().into_owned();
            assert!(packed.contains(&name.as_str()), "{} includes {name}, which is not packed", path.display());
        }
    }
}

#[test]
fn dependencies_come_from_one_registry_and_advisories_are_heeded() {
    let rules: toml::Table = toml::from_str(&fs::read_to_string("deny.toml").unwrap()).unwrap();
    assert!(rules.contains_key("advisories"));
    for unknown in ["unknown-registry", "unknown-git"] {
        assert_eq!(rules["sources"][unknown].as_str(), Some("deny"), "{unknown}");
    }
}
