//! The `headcount` program: reads the verb, calls it, prints the error, and returns the exit status.

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use headcount::ConfigError;
use headcount::server::{
    self, Demo, Flags, Loaded, Operator, OperatorError, Recipe, Screen, ServeError, Validated, Why,
};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Admission control for crowds: active users continue, newcomers get HTTP 429 until there is room.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// The format of the log on standard error. RUST_LOG sets its level; the default is info, and error for demo and
    /// validate
    #[arg(
        long,
        value_name = "FORMAT",
        global = true,
        value_enum,
        default_value_t = LogFormat::Text,
        env = "HEADCOUNT_LOG_FORMAT"
    )]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Lines for people
    Text,
    /// A JSON object per line, for programs
    Json,
}

#[derive(Subcommand)]
enum Verb {
    /// Answer checks for a proxy or an application, alone or in a fleet that shares a Redis.
    ///
    /// Flags override HEADCOUNT__SECTION__KEY in the environment, which overrides the file, which overrides the
    /// defaults.
    #[command(after_help = "Example:
  headcount serve --max-active-users 20000
  curl -i -H 'Authorization: Bearer alice' http://127.0.0.1:7070/v1/check   (200: in; 429: no room)
  http://127.0.0.1:7071/                                                    (the active users)")]
    Serve(Serve),
    /// Try it: three servers and their players in one process, and a page to watch them.
    #[command(
        after_help = "Needs no Redis and no files, and leaves nothing behind. All seats are taken within half a \
            minute, and another crowd comes every 50 seconds."
    )]
    Demo(Play),
    /// Check a configuration, and show the effective one.
    #[command(after_help = "Exit status: 0 if serve would start with it, 2 if not, 1 if --live found something wrong.

Example:
  headcount validate -c headcount.toml --live")]
    Validate(Validate),
    /// Compute a fleet's memory and traffic, and how many servers can share a Redis.
    #[command(after_help = "Example:
  headcount size --max-active-users 200000 --nodes 40")]
    Size(Size),
    /// Print a ready recipe: the configuration that puts headcount in front of an application.
    #[command(after_help = "Example:
  headcount config nginx > /etc/nginx/conf.d/headcount.conf

Each recipe says at its top what else has to be done, and what happens while headcount does not answer.")]
    Config {
        /// The proxy
        #[arg(value_name = "PROXY")]
        recipe: Recipe,
    },
    /// Show a running server: the active users, and whether the number is reliable.
    #[command(after_help = "Examples:
  headcount status --watch
  headcount status --json | jq .active_users.estimate
  headcount status --admin http://10.0.0.5:7071 --token-file /etc/headcount/admin.token")]
    Status(Status),
    /// Report by the exit status whether a server runs. For containers without a shell.
    #[command(after_help = "Exit status: 0 if it runs, 1 if not.

Example, in a Dockerfile:
  HEALTHCHECK CMD [\"headcount\", \"healthcheck\"]")]
    Healthcheck(Healthcheck),
    /// Admit all newcomers or none, or set another X, on the whole fleet and for a limited time.
    #[command(after_help = "Examples:
  headcount override throttling --for 10m --reason 'the database is slow' --by ann
  headcount override auto --max-active-users 15000 --for 2h
  headcount override auto                      (ends the override)

The override applies on every server of the fleet within two rounds, survives the restart of any of them, and ends by
itself. A server without a fleet forgets it when it restarts.")]
    Override(Override),
    /// Let newcomers gather before a time, on the whole fleet, and call them from then on.
    #[command(after_help = "Examples:
  headcount opening                                        (shows the openings)
  headcount opening 2026-12-01T18:00:00Z --gather 15m --order lottery
  headcount opening --cancel

Nobody new is admitted while newcomers gather; active users carry on. Then the opening can neither be replaced nor
cancelled. Needs line.enabled. The time is at most 12 hours
ahead; [[opening]] in the configuration sets later ones.")]
    Opening(Opening),
    /// Explain why a user is admitted or refused now, and what would let it in.
    #[command(after_help = "The token is read from standard input, so that no list of processes and no history of a \
shell shows it.

Examples:
  headcount explain < token.txt
  headcount explain --ticket \"$TICKET\" < token.txt
  headcount explain --user alice                (the user that a verified token names)
  headcount explain --ticket \"$TICKET\" --no-token

Nothing is recorded, renewed or charged.")]
    Explain(Explain),
    /// Print a script that completes headcount's arguments in a shell.
    #[command(after_help = "Example:
  headcount completions bash > /etc/bash_completion.d/headcount")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
struct Play {
    /// X: how many users at once may be active
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max_active_users: u64,
    /// The address of the admin page. If its port is taken, the demo uses another one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7071", value_parser = loopback)]
    admin: SocketAddr,
    /// Ends by itself after this time, such as 2m [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasting: Option<Duration>,
}

/// Parses the address of the demo's page. The page has no password, so only loopback addresses are allowed.
fn loopback(address: &str) -> Result<SocketAddr, String> {
    let address = server::resolve(address).map_err(|why| format!("it {why}; an address is such as 127.0.0.1:7071"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("the demo's page has no password, so only a loopback address will do, such as 127.0.0.1:7071".into())
    }
}

impl Play {
    fn run(&self) -> Result<(), ServeError> {
        let demo = Demo { max_active_users: self.max_active_users, admin: self.admin, lasting: self.lasting };
        runtime()?.block_on(demo.play())
    }
}

#[derive(Args)]
struct Validate {
    /// The configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the Redis of the configuration, too: connection, permissions, clock, eviction policy
    #[arg(long)]
    live: bool,
}

impl Validate {
    /// Prints the result of the check, and returns whether a server could run with the configuration.
    fn run(&self) -> Result<bool, ServeError> {
        let loaded = load(self.config.as_deref(), Flags::new())?;
        let validated = Validated::of(&loaded)?;
        // The exit status does not change if the reader closes the pipe early.
        let _ = print(&validated.effective());
        if let Some(note) = validated.note() {
            complain(&format!("note: {note}"));
        }
        for warning in validated.warnings() {
            complain(&format!("warning: {warning}"));
        }
        if !self.live {
            complain("The configuration can be used.");
            return Ok(true);
        }
        match validated.look_at_redis().map_err(|error| loaded.locate(error))? {
            Some(live) => {
                complain(format!("Redis:\n{live}").trim_end());
                Ok(live.is_well())
            }
            None => {
                complain("There is no [redis] to check: this server runs alone.");
                Ok(true)
            }
        }
    }
}

/// The server to ask.
#[derive(Args)]
struct Asked {
    /// The server's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7071")]
    admin: String,
    /// A file with the bearer token, if [admin] token_file is set
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Asked {
    fn operator(&self) -> Result<Operator, OperatorError> {
        Operator::of(&self.admin, self.token_file.as_deref())
    }
}

#[derive(Args)]
struct Status {
    #[command(flatten)]
    asked: Asked,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// Repeat every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Status {
    fn run(&self) -> Result<(), OperatorError> {
        let operator = self.asked.operator()?;
        if !self.watch {
            self.show(&operator.status()?);
            return Ok(());
        }
        loop {
            let status = operator.status();
            if !self.json {
                // Moves the cursor to the top, and clears the screen.
                say("\x1b[H\x1b[2J");
            }
            match status {
                Ok(status) => self.show(&status),
                Err(error) if self.json => complain(&format!("headcount: {error}")),
                Err(error) => say(&format!("{error}\n")),
            }
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }

    fn show(&self, status: &serde_json::Value) {
        say(&if self.json { format!("{status}\n") } else { Screen(status).to_string() });
    }
}

#[derive(Args)]
struct Healthcheck {
    /// The server's admin listener [default: HEADCOUNT__ADMIN__LISTEN, or else 127.0.0.1:7071]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Succeed only if the server is ready. It is not ready while it starts, stops, or lacks the keys that verify
    /// tokens
    #[arg(long)]
    ready: bool,
}

impl Healthcheck {
    fn run(&self) -> Result<(), OperatorError> {
        // A listener on all addresses is reached at this machine's loopback address.
        let configured = || std::env::var("HEADCOUNT__ADMIN__LISTEN").ok();
        let here = |listen: String| listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
        let admin = self.admin.clone().or_else(|| configured().map(here)).unwrap_or_else(|| "127.0.0.1:7071".into());
        let said = Operator::of(&admin, None)?.health(self.ready)?;
        say(&format!("{said}\n"));
        Ok(())
    }
}

#[derive(Args)]
struct Override {
    /// open: admit all newcomers; throttling: admit none; auto: admit while there is room
    #[arg(value_parser = ["open", "throttling", "auto"])]
    mode: String,
    /// The duration, at most 24h [default: 1h]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasting: Option<Duration>,
    /// Another X
    #[arg(long, value_name = "N")]
    max_active_users: Option<u64>,
    /// The most newcomers whom the whole fleet admits in a minute
    #[arg(long, value_name = "N")]
    newcomers_per_minute: Option<u64>,
    /// The reason, for the next person who looks
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Your name
    #[arg(long, value_name = "NAME", env = "USER")]
    by: Option<String>,
    #[command(flatten)]
    asked: Asked,
}

impl Override {
    fn run(&self) -> Result<(), OperatorError> {
        let operator = self.asked.operator()?;
        let sets_number = self.max_active_users.is_some() || self.newcomers_per_minute.is_some();
        let withdraws = self.mode == "auto" && !sets_number;
        if withdraws && (self.lasting.is_some() || self.reason.is_some()) {
            let why = "auto without --max-active-users or --newcomers-per-minute withdraws the override, so --for and \
                --reason have no meaning";
            Cli::command().error(clap::error::ErrorKind::ArgumentConflict, why).exit();
        }
        let said = if withdraws { operator.withdraw(self.by.as_deref())? } else { operator.set(&self.order())? };
        say(&match said["until"].as_str() {
            Some(until) => format!("{} until {until}\n", self.mode),
            None => "no override is in force\n".into(),
        });
        if let Some(warning) = said["warning"].as_str() {
            eprintln!("warning: {warning}");
        }
        // The order is given, also if this question fails.
        let sync = operator.status().unwrap_or_default()["sync"].take();
        if sync["ok"] == false && sync["store"] != "none" {
            eprintln!("warning: the store is away, so this server alone obeys: give the others the same order");
        }
        Ok(())
    }

    fn order(&self) -> serde_json::Value {
        let mut order = serde_json::json!({ "mode": self.mode });
        let mut set = |key: &str, value: Option<serde_json::Value>| {
            if let Some(value) = value {
                order[key] = value;
            }
        };
        set("for", self.lasting.map(|lasting| humantime::format_duration(lasting).to_string().into()));
        set("max_active_users", self.max_active_users.map(Into::into));
        set("newcomers_per_minute", self.newcomers_per_minute.map(Into::into));
        set("by", self.by.clone().map(Into::into));
        set("reason", self.reason.clone().map(Into::into));
        order
    }
}

#[derive(Args)]
struct Opening {
    /// When newcomers are admitted: a date and time in UTC
    at: Option<String>,
    /// How long before they gather, at most 2h [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "at")]
    gather: Option<Duration>,
    /// By what the gathered are ordered [default: arrival]
    #[arg(long, value_name = "ORDER", value_parser = ["arrival", "lottery"], requires = "at")]
    order: Option<String>,
    /// Cancel the opening that was set
    #[arg(long, conflicts_with = "at")]
    cancel: bool,
    #[command(flatten)]
    asked: Asked,
}

impl Opening {
    fn run(&self) -> Result<(), OperatorError> {
        let operator = self.asked.operator()?;
        let openings = match &self.at {
            _ if self.cancel => operator.set_opening(None)?,
            None => operator.openings()?,
            Some(at) => {
                let mut opening = serde_json::json!({ "at": at });
                if let Some(gather) = self.gather {
                    opening["gather"] = humantime::format_duration(gather).to_string().into();
                }
                if let Some(order) = &self.order {
                    opening["order"] = order.as_str().into();
                }
                operator.set_opening(Some(&opening))?
            }
        };
        let shown: String = openings.as_array().into_iter().flatten().map(server::opening_line).collect();
        say(if shown.is_empty() { "there are no openings\n" } else { &shown });
        Ok(())
    }
}

#[derive(Args)]
struct Explain {
    /// The user that a verified token names, instead of the token
    #[arg(long, value_name = "NAME", conflicts_with = "no_token")]
    user: Option<String>,
    /// The ticket that the user shows
    #[arg(long, value_name = "TICKET")]
    ticket: Option<String>,
    /// Read no token: explain what a newcomer with this ticket would be answered
    #[arg(long, requires = "ticket")]
    no_token: bool,
    /// The client's address, for limits by client_ip
    #[arg(long, value_name = "ADDRESS")]
    client_ip: Option<std::net::IpAddr>,
    /// The path of the request, for limits with routes
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asked: Asked,
}

impl Explain {
    fn run(&self) -> Result<(), OperatorError> {
        let token = if self.user.is_some() || self.no_token { None } else { Some(read_token()) };
        let question = serde_json::json!({
            "token": token,
            "user": self.user,
            "ticket": self.ticket,
            "client_ip": self.client_ip,
            "path": self.path,
        });
        let said = self.asked.operator()?.explain(&question)?;
        say(&if self.json { format!("{said}\n") } else { Why(&said).to_string() });
        Ok(())
    }
}

/// Reads a token from standard input, or exits if there is none.
fn read_token() -> String {
    if std::io::stdin().is_terminal() {
        complain("The token, and then Enter:");
    }
    let mut token = String::new();
    let most = headcount::MAX_TOKEN_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_line(&mut token);
    let token = token.trim();
    if read.is_err() || token.is_empty() {
        let why = "standard input has no token: headcount explain < token.txt, or --user NAME";
        Cli::command().error(clap::error::ErrorKind::MissingRequiredArgument, why).exit();
    }
    token.to_owned()
}

#[derive(Args)]
struct Size {
    /// X: how many users at once may be active
    #[arg(long, value_name = "N")]
    max_active_users: u64,
    /// The probability that an unknown token is taken for a known one, at capacity [default: 1e-3]
    #[arg(long, value_name = "R")]
    false_positive_rate: Option<f64>,
    /// The number of servers [default: a table of some numbers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: Option<u64>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

impl Size {
    fn run(&self) -> Result<(), ConfigError> {
        let size = server::Size::of(self.max_active_users, self.false_positive_rate, self.nodes)?;
        if self.json {
            say(&format!("{}\n", size.json()));
        } else {
            say(&size.to_string());
        }
        Ok(())
    }
}

#[derive(Args)]
struct Serve {
    /// The configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the check listener [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The address of the admin listener [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// The Redis of the fleet, such as redis://127.0.0.1:6379/0; without it, the server runs alone
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// X: how many users at once may be active. Start at 75 % of the load that the backend was measured to carry
    #[arg(long, value_name = "N")]
    max_active_users: Option<u64>,
    /// enforce: reject newcomers while there is no room; shadow: decide and count only; off: admit everybody
    #[arg(long, value_name = "MODE", value_parser = ["enforce", "shadow", "off"])]
    enforcement: Option<String>,
}

impl Serve {
    fn flags(&self) -> Flags {
        let mut flags = Flags::new();
        let mut set = |key, value: Option<String>| flags.extend(value.map(|value| (key, value)));
        set("server.listen", self.listen.clone());
        set("admin.listen", self.admin.clone());
        set("redis.url", self.redis.clone());
        set("admission.max_active_users", self.max_active_users.map(|max| max.to_string()));
        set("admission.enforcement", self.enforcement.clone());
        flags
    }

    fn run(&self) -> Result<(), ServeError> {
        let loaded = load(self.config.as_deref(), self.flags())?;
        runtime()?.block_on(server::serve(loaded))
    }
}

fn load(file: Option<&std::path::Path>, flags: Flags) -> Result<Loaded, ServeError> {
    // If a value is not UTF-8, its invalid bytes are replaced. Without the value, the key would count as not set.
    let lossy = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    let environment =
        std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().map(|name| (name, lossy(value))));
    Ok(server::load(file, environment, flags, Validated::check)?)
}

fn runtime() -> Result<tokio::runtime::Runtime, ServeError> {
    tokio::runtime::Runtime::new().map_err(|source| ServeError::System { what: "cannot start the runtime", source })
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _set_by_environment = fail::FailScenario::setup();
    let cli = Cli::parse();
    // These verbs print what matters to people, so by default they log only errors.
    let usual = if matches!(cli.verb, Verb::Demo(_) | Verb::Validate(_)) { "error" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    let served = |result: Result<(), ServeError>| match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, matches!(error, ServeError::Config(_))),
    };
    let operated = |result: Result<(), OperatorError>| match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, matches!(error, OperatorError::Token { .. })),
    };
    match cli.verb {
        Verb::Serve(serve) => served(serve.run()),
        Verb::Demo(demo) => served(demo.run()),
        Verb::Validate(validate) => match validate.run() {
            Ok(false) => ExitCode::FAILURE,
            result => served(result.map(drop)),
        },
        Verb::Status(status) => operated(status.run()),
        Verb::Healthcheck(check) => operated(check.run()),
        Verb::Override(order) => operated(order.run()),
        Verb::Opening(opening) => operated(opening.run()),
        Verb::Explain(question) => operated(question.run()),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "headcount", &mut script);
            say(&String::from_utf8_lossy(&script));
            ExitCode::SUCCESS
        }
        Verb::Config { recipe } => {
            say(recipe.text());
            ExitCode::SUCCESS
        }
        Verb::Size(size) => match size.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error, true),
        },
    }
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a text. Exits if the reader has closed the pipe.
fn say(text: &str) {
    if print(text).is_err() {
        std::process::exit(0);
    }
}

/// Prints a line on standard error. The reader may have closed the pipe.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints the error, and returns the exit status: 2 for wrong usage, 1 for other failures.
fn failed(error: &dyn std::error::Error, usage: bool) -> ExitCode {
    let text = error.to_string();
    // The text of a mistake in a configuration already has a prefix.
    complain(&if text.starts_with("error: ") { text } else { format!("headcount: {text}") });
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}
