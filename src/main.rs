//! The `headcount` program: reads the verb, calls it, prints the error, and says by its exit status how it went.

use clap::{Args, Parser, Subcommand};
use headcount::ConfigError;
use headcount::server::{self, Flags, Recipe, ServeError};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Admission control for crowds: users who are in stay in, newcomers get HTTP 429 until there is room.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Answer checks for a proxy or an application, alone or in a fleet that shares a Redis.
    ///
    /// Flags beat HEADCOUNT__SECTION__KEY in the environment, which beats the file, which beats the defaults.
    #[command(after_help = "Example:
  headcount serve --max-active-users 20000
  curl -i -H 'Authorization: Bearer alice' http://127.0.0.1:7070/v1/check   (200: in; 429: no room)
  http://127.0.0.1:7071/                                                    (how full the house is)")]
    Serve(Serve),
    /// Say what a fleet will cost in memory and traffic, and how many servers may share a Redis.
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
}

#[derive(Args)]
struct Size {
    /// X: how many users at once may be active
    #[arg(long, value_name = "N")]
    max_active_users: u64,
    /// How likely an unknown token may be taken for a known one, at capacity [default: 1e-3]
    #[arg(long, value_name = "R")]
    false_positive_rate: Option<f64>,
    /// How many servers [default: a table of some numbers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: Option<u64>,
    /// For programs
    #[arg(long)]
    json: bool,
}

impl Size {
    fn run(&self) -> Result<(), ConfigError> {
        let size = server::Size::of(self.max_active_users, self.false_positive_rate, self.nodes)?;
        if self.json {
            println!("{}", size.json());
        } else {
            print!("{size}");
        }
        Ok(())
    }
}

#[derive(Args)]
struct Serve {
    /// The configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where checks are answered [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where operators are answered [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// The Redis that the fleet shares, such as redis://127.0.0.1:6379/0; without it, one server alone
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// X: how many users at once may be active. Start at 75 % of what you measured the backend to carry
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
        let environment =
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        let loaded = server::load(self.config.as_deref(), environment, self.flags())?;
        let runtime = tokio::runtime::Runtime::new()
            .map_err(|source| ServeError::System { what: "cannot start the runtime", source })?;
        runtime.block_on(server::serve(loaded))
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _set_by_environment = fail::FailScenario::setup();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Cli::parse().verb {
        Verb::Serve(serve) => match serve.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error, matches!(error, ServeError::Config(_))),
        },
        Verb::Config { recipe } => {
            print!("{}", recipe.text());
            ExitCode::SUCCESS
        }
        Verb::Size(size) => match size.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error, true),
        },
    }
}

/// Says why, and by the exit status whether something else has to be asked for.
fn failed(error: &dyn std::error::Error, usage: bool) -> ExitCode {
    eprintln!("headcount: {error}");
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}
