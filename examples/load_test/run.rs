//! Runs one strategy: sends the requests that are due, records the active players, takes samples.

use crate::client::{Answered, Client, PATIENCE};
use crate::fleet::{Figures, Fleet};
use crate::options::Options;
use crate::redis_server::{Meter, Traffic};
use crate::scale::Scale;
use crate::strategy::Strategy;
use crate::truth::{Truth, Wronged};
use crossbeam_channel::{Receiver, Sender};
use hdrhistogram::Histogram;
use headcount::players::{Answer, Arrivals, Census, Habits, Players};
use indicatif::ProgressBar;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The interval of samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// The part of the run after which the rush is over. The fleet is full by then, and more newcomers come than fit.
pub const RUSH_ENDS: f64 = 0.25;

/// What reaches the run.
pub enum Event {
    Answered(Answered),
    /// Time for a sample, and what Redis has done until now.
    Sample(Traffic),
}

impl From<Answered> for Event {
    fn from(answered: Answered) -> Self {
        Self::Answered(answered)
    }
}

/// The figures at one moment. Counts are since the start.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Sample {
    /// Seconds since the start, on the wall.
    pub seconds: f64,
    pub active_true: u64,
    pub active_estimated: f64,
    pub active_estimated_low: u64,
    pub active_estimated_high: u64,
    /// The part of the servers that is throttling.
    pub throttling: f64,
    pub admitted: u64,
    pub rejected: u64,
    pub wrongly_rejected_older: u64,
    pub wrongly_rejected_younger: u64,
    pub wrongly_rejected_newest: u64,
    pub rounds: u64,
    pub conflicts: u64,
    pub redis_commands: u64,
    pub redis_bytes: u64,
}

impl Sample {
    pub fn requests(&self) -> u64 {
        self.admitted + self.rejected
    }
}

/// The result of a run.
pub struct Run {
    pub strategy: Strategy,
    pub samples: Vec<Sample>,
    pub wronged: Wronged,
    pub census: Census,
    pub lost: u64,
    pub most_active: u64,
    /// Microseconds from when a request was due to its answer.
    pub latency: Histogram<u64>,
    /// Microseconds by which the test sent requests late.
    pub lateness: Histogram<u64>,
    /// Mean time between a server's read and its write.
    pub read_to_write: Duration,
}

/// A run in progress.
struct Driver<'a> {
    fleet: &'a Fleet,
    client: Client,
    events: Receiver<Event>,
    answers: Sender<Event>,
    scale: Scale,
    started: Instant,
    players: Players,
    truth: Truth,
    run: Run,
    latest: Sample,
    /// Requests without an answer.
    in_flight: u64,
    /// The values that the servers had read before the run.
    fetched_before: u64,
    bar: ProgressBar,
    max_active_users: u64,
}

impl Run {
    /// Sends the crowd to a fleet.
    pub async fn of(
        strategy: Strategy,
        options: &Options,
        fleet: &Arc<Fleet>,
        meter: Option<Meter>,
        bar: ProgressBar,
    ) -> Self {
        let (answers, events) = crossbeam_channel::unbounded();
        let sampler = tokio::spawn(sample(meter, answers.clone()));
        let client = Client::new(&fleet.addresses());
        let (fleet, scale, duration) = (Arc::clone(fleet), options.scale(), options.duration());
        let players = Players::new(arrivals(options), habits(options), options.servers as usize, options.seed);
        let max_active_users = options.max_active_users;
        // A thread of its own: its waits are finer than the runtime's, which are whole milliseconds.
        let run = tokio::task::spawn_blocking(move || {
            let epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let driver = Driver {
                fleet: &fleet,
                client,
                events,
                answers,
                scale,
                started: Instant::now(),
                players,
                truth: Truth::new(scale, epoch),
                run: Self::empty(strategy),
                latest: Sample::default(),
                in_flight: 0,
                fetched_before: fleet.stopwatch.fetched(),
                bar,
                max_active_users,
            };
            driver.drive(duration)
        });
        let run = run.await.expect("the driver does not panic");
        sampler.abort();
        run
    }

    fn empty(strategy: Strategy) -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds of known good sizes");
        Self {
            strategy,
            samples: vec![Sample::default()],
            wronged: Wronged::default(),
            census: Census::default(),
            lost: 0,
            most_active: 0,
            latency: histogram(),
            lateness: histogram(),
            read_to_write: Duration::ZERO,
        }
    }
}

impl Driver<'_> {
    fn drive(mut self, duration: Duration) -> Run {
        loop {
            let now = self.started.elapsed();
            if now >= duration {
                break;
            }
            while let Some(visit) = self.players.next(self.scale.fleet(now)) {
                let late = self.started.elapsed().saturating_sub(self.scale.wall(visit.due));
                self.run.lateness.saturating_record(late.as_micros() as u64);
                self.client.send(visit, self.started, &self.answers);
                self.in_flight += 1;
            }
            let due = self.players.next_due().map_or(duration, |due| self.scale.wall(due).min(duration));
            if let Ok(event) = self.events.recv_deadline(self.started + due) {
                self.apply(event);
                while let Ok(event) = self.events.try_recv() {
                    self.apply(event);
                }
            }
        }
        self.drain();
        self.bar.finish_and_clear();
        self.run.wronged = self.truth.wronged;
        self.run.census = self.players.census();
        self.run.read_to_write = self.fleet.stopwatch.mean();
        self.run
    }

    /// Waits for the answers that are due. A fleet that hangs at the end loses its requests.
    fn drain(&mut self) {
        let deadline = Instant::now() + PATIENCE + Duration::from_secs(1);
        while self.in_flight > 0
            && let Ok(event) = self.events.recv_deadline(deadline)
        {
            if let Event::Answered(answered) = event {
                self.apply_answer(answered);
            }
        }
        self.run.lost += self.in_flight;
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Answered(answered) => self.apply_answer(answered),
            Event::Sample(traffic) => self.take_sample(traffic),
        }
    }

    fn apply_answer(&mut self, Answered { visit, sent, at, answer }: Answered) {
        self.in_flight -= 1;
        let latency = at.saturating_sub(self.scale.wall(visit.due));
        self.run.latency.saturating_record(latency.as_micros() as u64);
        match answer {
            Answer::Admitted => {
                self.latest.admitted += 1;
                self.truth.admitted(visit.player, sent, at);
                self.run.most_active = self.run.most_active.max(self.truth.active_users(at));
            }
            Answer::Rejected { .. } => {
                self.latest.rejected += 1;
                self.truth.rejected(visit.player, sent, at);
            }
            Answer::Lost => self.run.lost += 1,
        }
        self.players.answer(visit.player, answer);
    }

    fn take_sample(&mut self, traffic: Traffic) {
        let now = self.started.elapsed();
        let Figures { estimate, low, high, throttling, rounds, conflicts } = self.fleet.figures();
        let sample = Sample {
            seconds: now.as_secs_f64(),
            active_true: self.truth.active_users(now),
            active_estimated: estimate,
            active_estimated_low: low,
            active_estimated_high: high,
            throttling,
            wrongly_rejected_older: self.truth.wronged.older_players,
            wrongly_rejected_younger: self.truth.wronged.younger_players,
            wrongly_rejected_newest: self.truth.wronged.newest_players,
            rounds,
            conflicts,
            redis_commands: traffic.commands + self.fleet.stopwatch.fetched() - self.fetched_before,
            redis_bytes: traffic.bytes,
            ..self.latest
        };
        self.show(&sample);
        self.latest = sample;
        self.run.samples.push(sample);
    }

    fn show(&self, sample: &Sample) {
        let before = self.run.samples.len().saturating_sub(4);
        let before = &self.run.samples[before];
        let rate = (sample.requests() - before.requests()) as f64 / (sample.seconds - before.seconds).max(1e-3);
        self.bar.set_position(self.started.elapsed().as_millis() as u64);
        self.bar.set_message(format!(
            "in {} (estimated {:.0}) of {} · {rate:.0} requests/s · wrongly rejected {}+{}+{}",
            sample.active_true,
            sample.active_estimated,
            self.max_active_users,
            sample.wrongly_rejected_older,
            sample.wrongly_rejected_younger,
            sample.wrongly_rejected_newest,
        ));
    }
}

/// Requests a sample when it is due, with what Redis has done since the start.
async fn sample(mut meter: Option<Meter>, events: Sender<Event>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    let mut first = None;
    loop {
        ticks.tick().await;
        let traffic = match &mut meter {
            // Without an answer, there is no sample. Zero would count as what Redis has done.
            Some(meter) => match meter.read().await {
                Ok(traffic) => traffic,
                Err(_) => continue,
            },
            None => Traffic::default(),
        };
        let first = first.get_or_insert(traffic);
        let traffic = Traffic {
            commands: traffic.commands.saturating_sub(first.commands),
            scripts: traffic.scripts.saturating_sub(first.scripts),
            bytes: traffic.bytes.saturating_sub(first.bytes),
        };
        if events.send(Event::Sample(traffic)).is_err() {
            return;
        }
    }
}

/// Arrivals that rise in the first 15 % of the run, so that the fleet fills up, fall to `--crowd` newcomers per minute
/// until 25 % of the run, and then stay there.
fn arrivals(options: &Options) -> Arrivals {
    let duration = options.scale().fleet(options.duration());
    let (crowd, minutes) = (options.crowd(), duration.as_secs_f64() / 60.0);
    let rush = (3.0 * options.max_active_users as f64 / (minutes / 5.0)).max(crowd);
    Arrivals::through([
        (Duration::ZERO, crowd / 10.0),
        (duration.mul_f64(0.15), rush),
        (duration.mul_f64(RUSH_ENDS), crowd),
        (duration, crowd),
    ])
}

fn habits(options: &Options) -> Habits {
    Habits { roaming: options.roaming(), ..Habits::default() }
}
