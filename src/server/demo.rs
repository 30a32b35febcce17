//! `headcount demo`: a small fleet and its players, in one process and without other programs.
//!
//! Three servers share a store in memory. The players' time runs sixty times as fast as real time, so their window of
//! half an hour takes half a minute. A crowd takes all seats within a window, then most players leave, and the next
//! crowd arrives.

use super::listener::{Listener, MAX_ADMIN_CONNECTIONS, Purpose};
use super::serve::ServeError;
use crate::headcount::{Admission, Headcount};
use crate::players::{Answer, Arrivals, Habits, Players};
use crate::sync::MemoryStore;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A second of real time is a minute of the players' time.
const SPEED: u32 = 60;
const SERVERS: usize = 3;
const SLOTS: u32 = 30;
const SYNC_EVERY: Duration = Duration::from_millis(200);

/// The time from one crowd to the next. It is long enough for the servers to forget a crowd, which takes half a minute
/// after its last request.
const CROWD_EVERY: Duration = Duration::from_secs(50);

/// The options of the demo.
#[derive(Debug, Clone, Copy)]
pub struct Demo {
    /// X: the most users that may be active at once.
    pub max_active_users: u64,
    /// The address of the admin page. If its port is taken, the demo uses another one.
    pub admin: SocketAddr,
    /// The time after which the demo ends by itself; `None` to play until Ctrl-C.
    pub lasting: Option<Duration>,
}

impl Demo {
    /// Plays until Ctrl-C, or for the time [`lasting`](Self::lasting).
    ///
    /// # Errors
    /// [`ServeError`] if the page cannot be served or X is invalid.
    pub async fn play(self) -> Result<(), ServeError> {
        let store = MemoryStore::new();
        let fleet: Vec<_> = (1..=SERVERS).map(|nth| self.server(nth)).collect::<Result<_, _>>()?;
        for server in &fleet {
            tokio::spawn(server.sync_with(store.clone()).run());
        }
        let admin = self.listener().await?;
        self.announce(admin.address());
        let router = fleet[0].admin_router_on(Some(admin.address().ip()));
        let router = router.map_err(|error| impossible("the page", error))?;
        let (stop, stops) = watch::channel(false);
        let admin = tokio::spawn(admin.serve(router, fleet[0].clone(), stops));
        let begun = Instant::now();
        let over = async {
            match self.lasting {
                Some(lasting) => sleep_until(begun + lasting).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = crowds(&fleet, self.max_active_users, begun) => {}
            () = over => {}
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|source| ServeError::System { what: "cannot wait for Ctrl-C", source })?;
            }
        }
        say("\nThe demo has ended. To start a real server: headcount serve --max-active-users N");
        for server in &fleet {
            server.stop().await;
        }
        stop.send_replace(true);
        let _ = admin.await;
        Ok(())
    }

    fn server(self, nth: usize) -> Result<Headcount, ServeError> {
        let builder = Headcount::builder().max_active_users(self.max_active_users).node(format!("demo-{nth}"));
        let builder = builder.slots(SLOTS).window(SLOTS * SECOND).sync_every(SYNC_EVERY);
        let builder = builder.retry_after(SECOND, 2 * SECOND).secret("the key of the demo");
        let (headcount, worker) = builder.build().map_err(|error| impossible("the demo", error))?;
        let thread = std::thread::Builder::new().name("headcount-worker".into());
        let spawned = thread.spawn(|| worker.run());
        spawned.map_err(|source| ServeError::System { what: "cannot start the worker", source })?;
        Ok(headcount)
    }

    /// Opens the admin listener. If its port is taken, for example by a real headcount server, it uses another one.
    async fn listener(self) -> Result<Listener, ServeError> {
        if let Ok(listener) = Listener::bind(Purpose::Admin, self.admin, MAX_ADMIN_CONNECTIONS).await {
            return Ok(listener);
        }
        let any_port = SocketAddr::new(self.admin.ip(), 0);
        let error = |source| ServeError::Listen { key: "--admin", address: self.admin, source };
        Listener::bind(Purpose::Admin, any_port, MAX_ADMIN_CONNECTIONS).await.map_err(error)
    }

    fn announce(self, page: SocketAddr) {
        say(&format!(
            "{SERVERS} servers, room for {}, a window of {SLOTS} s; one second is one minute of the players' time.\n\
             Watch and steer it: http://{page}/\n\
             Ctrl-C ends it.\n",
            self.max_active_users
        ));
    }
}

/// Plays one crowd after another. Players of the previous crowd who still play continue.
async fn crowds(fleet: &[Headcount], max_active_users: u64, begun: Instant) {
    let mut lines = Lines::new(fleet, begun);
    let mut crowds = Vec::<Crowd>::new();
    let (mut next, mut comes) = (0, begun);
    loop {
        let due = crowds.iter().filter_map(Crowd::next_due).fold(comes, Instant::min);
        tokio::select! {
            () = sleep_until(due) => {}
            () = lines.due() => lines.say(),
        }
        if Instant::now() >= comes {
            let players = Players::new(rush(max_active_users), Habits::default(), fleet.len(), next);
            crowds.push(Crowd { nth: next, came: comes, players });
            (next, comes) = (next + 1, comes + CROWD_EVERY);
        }
        crowds.iter_mut().for_each(|crowd| crowd.play(fleet));
        crowds.retain(|crowd| crowd.next_due().is_some());
    }
}

/// Players who arrive together.
struct Crowd {
    nth: u64,
    came: Instant,
    players: Players,
}

impl Crowd {
    fn next_due(&self) -> Option<Instant> {
        self.players.next_due().map(|due| self.came + due / SPEED)
    }

    fn play(&mut self, fleet: &[Headcount]) {
        let now = self.came.elapsed() * SPEED;
        while let Some(visit) = self.players.next(now) {
            // The next crowd consists of other players.
            let token = format!("{}-{}", self.nth, visit.player);
            let answer = match fleet[visit.server].admit(token) {
                Admission::Admitted(_) => Answer::Admitted,
                Admission::Rejected { retry_after } => Answer::Rejected { retry_after: retry_after * SPEED },
            };
            self.players.answer(visit.player, answer);
        }
    }
}

/// Returns the arrivals of a crowd: twice as many players as fit, within twenty minutes of their time, and then hardly
/// any until the next crowd.
fn rush(max_active_users: u64) -> Arrivals {
    let x = max_active_users as f64;
    let corners = [(0, 0.1), (20, 0.1), (21, 0.01), (49, 0.01), (50, 0.0)];
    Arrivals::through(corners.map(|(minute, of_x)| (minute * MINUTE, of_x * x)))
}

/// Prints a line per second with what an operator wants to know.
struct Lines<'f> {
    fleet: &'f [Headcount],
    begun: Instant,
    ticks: tokio::time::Interval,
    /// The numbers of admitted and rejected players up to the last line.
    told: [u64; 2],
}

impl<'f> Lines<'f> {
    fn new(fleet: &'f [Headcount], begun: Instant) -> Self {
        let mut ticks = interval(SECOND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { fleet, begun, ticks, told: [0, 0] }
    }

    async fn due(&mut self) {
        self.ticks.tick().await;
    }

    fn say(&mut self) {
        let status = self.fleet[0].status();
        let count = |server: &Headcount| {
            let decisions = server.status().decisions;
            [decisions.newcomer + decisions.warming, decisions.rejected]
        };
        let counted = self.fleet.iter().map(count).fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
        let [came_in, turned_away] = [0, 1].map(|at| counted[at].saturating_sub(self.told[at]));
        self.told = counted;
        let (users, x) = (status.active_users.estimate, status.max_active_users);
        let seconds = self.begun.elapsed().as_secs();
        say(&format!(
            "{:02}:{:02}  {:<10}  {users:>6} of {x} {:<20} {came_in:>4} admitted, {turned_away:>4} rejected",
            seconds / 60,
            seconds % 60,
            status.mode.as_str(),
            "█".repeat((20 * users / x.max(1)).min(20) as usize),
        ));
    }
}

fn impossible(what: &'static str, error: impl std::fmt::Display) -> ServeError {
    ServeError::System { what, source: io::Error::other(error.to_string()) }
}

/// Prints a line. Errors are ignored: the reader may have closed the pipe.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
