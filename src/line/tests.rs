//! Lines that are played through: waiters arrive, poll when they are told to, and take seats.

use super::*;

/// A newcomer who shows a ticket.
fn showing(waiter: Waiter) -> Comer {
    Comer::shows(waiter, Class::FIRST)
}

/// A newcomer who arrives without a ticket.
fn arrival(place: Place) -> Comer {
    Comer::arrives(place, Class::FIRST)
}

use crate::fingerprint::Fingerprint;
use std::collections::BinaryHeap;

const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const ALICE: Fingerprint = Fingerprint(1 << 60);
const UNKNOWN: WhileUnknown =
    WhileUnknown { each: Duration::from_millis(100), longest: Duration::from_secs(30), opens_in: None };
/// The length of a slot.
const MINUTES: Duration = Duration::from_secs(60);
const ADVANCED_EVERY: u64 = 250; // ms

fn seats(free: u64) -> Seats {
    Seats { free, soon: 0 }
}

fn at(millis: u64) -> Timestamp {
    NOON.plus(Duration::from_millis(millis))
}

/// A client that polls when it is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Client {
    /// When it polls next, in ms.
    polls: u64,
    /// When it came, in ms.
    came: u64,
    /// When it loses its patience, in ms.
    leaves: u64,
    ticket: Option<Waiter>,
    class: u8,
    /// Whether it throws its ticket away after each poll.
    loses: bool,
}

impl Ord for Client {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.polls, other.came).cmp(&(self.polls, self.came))
    }
}

impl PartialOrd for Client {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Clients who come at one server, and seats that become free there.
struct Play {
    line: Line,
    rng: fastrand::Rng,
    clients: BinaryHeap<Client>,
    free: f64,
    /// As many free seats are kept at most, as if newcomers per minute were bounded.
    kept: f64,
    /// When each client came and when it was served, in the order of service, in ms.
    served: Vec<(u64, u64)>,
    served_of_class: [u64; 3],
    /// The polls.
    polls: u64,
    /// The relative errors of what clients were told about their wait.
    told: Vec<(u64, u64, f64)>,
    /// The seats that stood free, times the ms, while somebody waited.
    unused: f64,
}

impl Play {
    fn new(seed: u64) -> Self {
        Self::of_classes(seed, &[1])
    }

    fn of_classes(seed: u64, weights: &[u32]) -> Self {
        Self {
            line: Line::new(weights, MINUTES),
            rng: fastrand::Rng::with_seed(seed),
            clients: BinaryHeap::new(),
            free: 0.0,
            kept: f64::INFINITY,
            served: Vec::new(),
            served_of_class: [0; 3],
            polls: 0,
            told: Vec::new(),
            unused: 0.0,
        }
    }

    /// Lets `count` clients come, evenly spread over `[from, to)` ms, with a mean patience in ms. A `loses` of them
    /// throw their tickets away.
    fn arrive(&mut self, count: u64, span: (u64, u64), patience: f64, loses: f64) {
        self.arrive_in(0, count, span, patience, loses);
    }

    fn arrive_in(&mut self, class: u8, count: u64, (from, to): (u64, u64), patience: f64, loses: f64) {
        for _ in 0..count {
            let came = self.rng.u64(from..to);
            let leaves = came + (-self.rng.f64().max(1e-9).ln() * patience) as u64;
            let loses = self.rng.f64() < loses;
            self.clients.push(Client { polls: came, came, leaves, ticket: None, class, loses });
        }
    }

    /// Plays until `end`, with this many seats becoming free each second.
    fn until(&mut self, from: u64, end: u64, seats_per_second: f64) {
        for now in (from..end).step_by(ADVANCED_EVERY as usize) {
            self.free = self.kept.min(self.free + seats_per_second * ADVANCED_EVERY as f64 / 1000.0);
            if !self.clients.is_empty() {
                self.unused += self.free * ADVANCED_EVERY as f64;
            }
            let soon = if self.kept.is_finite() { 5 * seats_per_second as u64 } else { 0 };
            self.line.advance(Seats { free: self.free as u64, soon }, at(now));
            while self.clients.peek().is_some_and(|client| client.polls < now + ADVANCED_EVERY) {
                let client = self.clients.pop().unwrap();
                self.poll(client);
            }
        }
    }

    fn poll(&mut self, mut client: Client) {
        let now = client.polls;
        if now >= client.leaves {
            return;
        }
        self.polls += 1;
        let comer = match client.ticket {
            Some(waiter) => Comer::shows(waiter, Class(client.class)),
            None => Comer::arrives(Place::of_arrival(at(now), self.rng.u16(..)), Class(client.class)),
        };
        let of_class = |mut marks: Box<dyn Iterator<Item = u64> + '_>| marks.nth(client.class.into()).unwrap();
        let is_called = self.line.called_to().is_none_or(|marks| comer.place.rank() <= of_class(Box::new(marks)));
        if is_called && self.free >= 1.0 {
            self.free -= 1.0;
            if let Some(waiter) = &comer.waiter {
                self.line.serve(waiter, Class(client.class));
            }
            if !client.loses {
                self.served.push((client.came, now));
                self.served_of_class[usize::from(client.class)] += 1;
            }
            return;
        }
        let wait = self.line.refuse(
            &comer,
            Fingerprint((client.came << 32) ^ (client.leaves << 16)),
            at(now),
            UNKNOWN,
            self.rng.f64(),
        );
        if let Some(eta) = wait.eta {
            self.told.push((client.came, now, eta.estimate.as_secs_f64() * 1000.0));
        }
        client.ticket = (!client.loses).then_some(wait.waiter);
        client.polls = now + wait.retry_after.as_millis() as u64;
        self.clients.push(client);
    }

    /// Kendall's τ between the order of arrival and the order of service of those who waited.
    fn tau(&self) -> f64 {
        let waited: Vec<_> = self.served.iter().filter(|(came, served)| came != served).collect();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut pair = || {
            let [first, second] = [waited[rng.usize(..waited.len())], waited[rng.usize(..waited.len())]];
            ((first.0 as f64 - second.0 as f64) * (first.1 as f64 - second.1 as f64)).partial_cmp(&0.0).unwrap() as i64
        };
        (0..200_000).map(|_| pair()).sum::<i64>() as f64 / 200_000.0
    }
}

/// The results of a play.
#[derive(Debug)]
struct Results {
    tau: f64,
    /// The part of the seats that was free on average while somebody waited.
    free: f64,
    /// The median relative error of the expected waits.
    eta_error: f64,
    polls_per_second: f64,
}

impl Play {
    fn results(&self, millis: u64) -> Results {
        let served: std::collections::HashMap<_, _> = self.served.iter().copied().collect();
        let error = |(came, at, told): &(u64, u64, f64)| {
            let waits = served.get(came)?.saturating_sub(*at) as f64;
            (waits > 10_000.0).then(|| (told - waits).abs() / waits)
        };
        let mut errors: Vec<_> = self.told.iter().filter_map(error).collect();
        errors.sort_by(f64::total_cmp);
        let seconds = millis as f64 / 1000.0;
        Results {
            tau: self.tau(),
            free: self.unused / millis as f64 / X,
            eta_error: errors[errors.len() / 2],
            polls_per_second: self.polls as f64 / seconds,
        }
    }
}

const MINUTE: u64 = 60_000;

/// All seats: 30 minutes of eleven a second.
const X: f64 = 20_000.0;

#[test]
fn waiters_come_in_by_the_order_of_their_arrival() {
    let patience = 20.0 * MINUTE as f64;
    // Thirty a second for ten minutes; 20,000 within one; one in ten throws its tickets away; impatient ones.
    let arrivals: [(&str, u64, u64, f64, f64); 4] = [
        ("steady", 18_000, 10, patience, 0.0),
        ("launch", 20_000, 1, patience, 0.0),
        ("one in ten loses its tickets", 18_000, 10, patience, 0.1),
        ("patience of five minutes", 18_000, 10, 5.0 * MINUTE as f64, 0.0),
    ];
    for (name, count, minutes, patience, loses) in arrivals {
        let mut play = Play::new(count);
        play.arrive(count, (0, minutes * MINUTE), patience, loses);
        play.until(0, 10 * MINUTE, 11.0);
        let results = play.results(10 * MINUTE);
        println!("{name}: {results:.3?}");
        let Results { tau, free, eta_error, polls_per_second } = results;
        assert!(tau >= 0.95 && free <= 0.01 && eta_error < 0.2 && polls_per_second < 700.0, "{name}: {results:?}");
    }
}

#[test]
fn a_crowd_that_comes_at_once_waits_in_order_and_is_called_without_a_pause() {
    // Early ones, and a crowd within three seconds of a bin. Within an eighth of a second their order is random, so τ
    // is at most 0.956.
    for (early, first) in [(0, 0), (0, 3_000), (0, 7_500), (50, 7_500)] {
        let mut play = Play::new(early + first);
        play.arrive(early, (0, first.max(1)), 1e12, 0.0);
        play.arrive(3_000, (first, first + 3_000), 1e12, 0.0);
        play.until(0, 4 * MINUTE, 10.0);
        let Results { tau, free, .. } = play.results(4 * MINUTE);
        let unused = free * X / 10.0;
        println!("{early} early, crowd at {first} ms: τ {tau:.3}, a seat stands free for {unused:.1} s");
        assert!(tau >= 0.94 && unused < 6.0, "τ {tau}, {unused} s");
    }
}

#[test]
fn clients_who_keep_no_ticket_get_the_seats_that_nobody_comes_for() {
    for (loses, keeps) in [(1.0, 0), (0.5, 1)] {
        let mut play = Play::new(9);
        play.arrive(4_000, (0, MINUTE), 1e12, loses);
        play.until(0, MINUTE, 10.0);
        let free = play.free;
        play.until(MINUTE, 5 * MINUTE, 10.0);
        println!("{loses} keep no ticket: {free:.0} of 600 seats are free after a minute, {:.0} after five", play.free);
        assert!(play.free < 400.0, "{loses}: {} seats are free", play.free);
        assert!(play.served.len() >= keeps * 1_000, "{loses}: {} with tickets came in", play.served.len());
    }
}

#[test]
fn a_crowd_that_vanishes_at_once_does_not_block_those_behind_it() {
    let mut play = Play::new(4);
    play.kept = 20.0;
    // Bots ask once. Honest clients come in the seven seconds after them.
    play.arrive(2_000, (0, 1_000), 1.0, 0.0);
    play.arrive(500, (1_000, 8_000), 1e12, 0.0);
    let mut served = Vec::new();
    for half in 0..8 {
        play.until(half * MINUTE / 2, (half + 1) * MINUTE / 2, 10.0);
        served.push(play.served.len());
    }
    println!("served after each half minute: {served:?}");
    assert!(served[4] >= 500, "{served:?}");
}

#[test]
fn half_of_the_line_leaves_and_the_others_still_get_the_seats() {
    let mut play = Play::new(7);
    play.arrive(5_000, (0, MINUTE), 1e12, 0.0);
    play.until(0, 3 * MINUTE, 10.0);
    let before = play.served.len();
    let clients = std::mem::take(&mut play.clients).into_vec();
    play.clients = clients.into_iter().enumerate().filter_map(|(at, it)| (at % 2 == 0).then_some(it)).collect();
    play.until(3 * MINUTE, 5 * MINUTE, 10.0);
    let served = play.served.len() - before;
    println!("{served} of 1,200 seats were used while half of the line vanished");
    assert!(served >= 1_150, "{served}");
    assert!(play.free < 60.0, "{} seats are free", play.free);
}

#[test]
fn a_line_is_open_when_nobody_waits_and_forms_with_the_first_refusal() {
    let mut line = Line::new(&[1], MINUTES);
    let arrival_at = |millis| arrival(Place::of_arrival(at(millis), 500));
    line.advance(seats(0), at(0));
    assert!(line.called_to().is_none());
    let wait = line.refuse(&arrival_at(0), Fingerprint(10 << 16), at(0), UNKNOWN, 0.0);
    assert_eq!((wait.position.estimate, wait.eta, wait.retry_after), (1, None, Duration::from_secs(5)));
    assert!(line.called_to().unwrap().next().unwrap() < arrival_at(0).place.rank());
    line.advance(seats(1), at(250));
    assert!(line.called_to().unwrap().next().unwrap() >= arrival_at(0).place.rank(), "he is called");
    line.advance(seats(2), at(500));
    assert!(line.called_to().is_none(), "more seats than waiters");
    line.refuse(&arrival_at(1), Fingerprint(11 << 16), at(600), UNKNOWN, 0.0);
    line.serve(&wait.waiter, Class::FIRST);
    line.advance(seats(0), at(750));
    let ClassView { waiting, served, .. } = line.figures(at(750)).all.view;
    assert_eq!((waiting, served), (1, 1));
    line.advance(seats(0), at(120_000));
    let ClassView { waiting, left, .. } = line.figures(at(120_000)).all.view;
    assert_eq!((waiting, left, line.called_to().is_none()), (0, 1, true), "the second has not come back");
}

#[test]
fn a_poll_before_its_time_changes_nothing() {
    let mut line = Line::new(&[1], MINUTES);
    for other in 0..300 {
        line.refuse(&arrival(Place(at(0).as_micros() + other)), Fingerprint(other << 16), at(0), UNKNOWN, 0.0);
    }
    let place = Place::of_arrival(at(0), 900);
    let first = line.refuse(&arrival(place), ALICE, at(0), UNKNOWN, 0.0);
    assert_eq!((first.position.estimate, first.retry_after), (301, UNKNOWN.longest));
    let polls_too_soon = |line: &mut Line, seconds: u64| {
        let again = line.refuse(&showing(first.waiter), ALICE, at(1000 * seconds), UNKNOWN, 0.5);
        assert_eq!(again.waiter, first.waiter, "the same ticket");
        assert_eq!(again.retry_after.as_secs(), 30 - seconds);
    };
    (1..15).for_each(|seconds| polls_too_soon(&mut line, seconds));
    line.advance(seats(0), at(14_000));
    assert_eq!(line.figures(at(14_000)).all.view.waiting, 301);
    (15..30).for_each(|seconds| polls_too_soon(&mut line, seconds));
    let waiting = |line: &mut Line| {
        line.advance(seats(0), at(30_000));
        line.figures(at(30_000)).all.view.waiting
    };
    let before = waiting(&mut line);
    let next = line.refuse(&showing(first.waiter), ALICE, at(30_001), UNKNOWN, 0.0);
    assert_eq!((next.waiter.place, next.waiter.polled_after), (place, 30_000));
    assert_eq!(waiting(&mut line), before);
}

#[test]
fn nobody_waits_for_a_clock_that_went_back() {
    let mut line = Line::new(&[1], MINUTES);
    let first = line.refuse(&arrival(Place::of_arrival(at(600_000), 900)), ALICE, at(600_000), UNKNOWN, 0.0);
    assert!(showing(first.waiter).is_early(at(600_000)));
    assert!(!showing(first.waiter).is_early(at(0)));
    let next = line.refuse(&showing(first.waiter), ALICE, at(0), UNKNOWN, 0.0);
    assert!(next.retry_after <= UNKNOWN.longest, "{next:?}");
}

/// A waiter who is called polls every two seconds. Each of these polls counts, although they come within four seconds.
#[test]
fn a_waiter_who_polls_often_does_not_count_as_one_who_has_left() {
    let mut line = Line::new(&[1], MINUTES);
    let mut ticket = line.refuse(&arrival(Place::of_arrival(at(0), 900)), ALICE, at(0), UNKNOWN, 0.0).waiter;
    let mut now = 5000;
    for _ in 0..60 {
        let wait = line.refuse(&showing(ticket), ALICE, at(now), UNKNOWN, 0.0);
        assert!(wait.waiter.is_counted);
        ticket = wait.waiter;
        line.advance(seats(1), at(now));
        now += wait.retry_after.as_millis() as u64;
    }
    line.advance(seats(1), at(now));
    let ClassView { waiting, left, .. } = line.figures(at(now)).all.view;
    assert_eq!((waiting, left), (1, 0));
}

#[test]
fn hostile_places_and_times_overflow_nothing() {
    let mut line = Line::new(&[1], MINUTES);
    for place in [0, 1, NOON.as_micros(), u64::MAX >> 13, u64::MAX] {
        for now in [0, 1, NOON.as_micros(), u64::MAX] {
            let waiter = Waiter {
                arrived: Place(place),
                place: Place(place),
                class: Class::FIRST,
                polled_after: u32::MAX,
                retry_after: u16::MAX,
                is_counted: true,
            };
            let now = Timestamp::from_micros(now);
            for comer in [arrival(Place(place)), showing(waiter)] {
                line.refuse(
                    &comer,
                    ALICE,
                    now,
                    WhileUnknown { each: Duration::MAX, longest: Duration::MAX, opens_in: None },
                    1.0,
                );
                line.serve(&waiter, Class::FIRST);
                line.advance(Seats { free: u64::MAX >> 1, soon: u64::MAX >> 1 }, now);
                line.advance(seats(1), now);
                line.figures(now);
            }
        }
    }
}

#[test]
fn one_who_asks_again_and_again_counts_once() {
    let mut line = Line::new(&[1], MINUTES);
    let waiting = |line: &mut Line, millis| {
        line.advance(seats(0), at(millis));
        line.figures(at(millis)).all.view.waiting
    };
    let mut tickets = Vec::new();
    for millis in 0..1000 {
        let arrival = arrival(Place::of_arrival(at(millis), 5));
        tickets.push(line.refuse(&arrival, ALICE, at(millis), UNKNOWN, 0.5).waiter);
    }
    assert_eq!(waiting(&mut line, 1000), 1, "without a ticket");
    assert_eq!(tickets.iter().filter(|ticket| ticket.is_counted).count(), 1);
    for millis in 6000..7000 {
        line.refuse(&showing(tickets[0]), ALICE, at(millis), UNKNOWN, 0.5);
    }
    assert_eq!(waiting(&mut line, 7000), 1, "with the same ticket");
    // All the tickets, as if the client were many. No one else is taken out for them.
    line.refuse(&arrival(Place::of_arrival(at(7000), 5)), Fingerprint(9 << 16), at(7000), UNKNOWN, 0.5);
    tickets[1..].iter().for_each(|ticket| _ = line.refuse(&showing(*ticket), ALICE, at(8000), UNKNOWN, 0.5));
    assert_eq!(waiting(&mut line, 8000), 2);
    tickets[1..].iter().for_each(|ticket| line.serve(ticket, Class::FIRST));
    assert_eq!(waiting(&mut line, 8500), 2);
}

#[test]
fn classes_get_seats_by_their_weights_while_waiters_of_all_are_left() {
    for (seed, weights) in [(1, [1, 4, 0]), (2, [1, 1, 2]), (3, [5, 1, 10])] {
        let classes = weights.iter().filter(|weight| **weight > 0).count();
        for seats_per_second in [0.5, 10.0, 60.0] {
            let mut play = Play::of_classes(seed, &weights[..classes]);
            let crowd = (300.0 * seats_per_second) as u64;
            for class in 0..classes as u8 {
                play.arrive_in(class, crowd, (0, MINUTE), 1e12, 0.0);
            }
            play.until(0, MINUTE, 0.0);
            play.until(MINUTE, 5 * MINUTE, seats_per_second);
            let all: u64 = play.served_of_class.iter().sum();
            println!("weights {weights:?}, {seats_per_second} seats a second: {:?} served", play.served_of_class);
            assert!(all as f64 >= 0.98 * 240.0 * seats_per_second - 3.0, "{all} served");
            for (class, weight) in weights.iter().enumerate() {
                let fair = all as f64 * f64::from(*weight) / f64::from(weights.iter().sum::<u32>());
                let served = play.served_of_class[class] as f64;
                assert!((served - fair).abs() <= 3.0 + 0.05 * fair, "class {class}: {served} instead of {fair}");
            }
        }
    }
}

/// A class that has been empty has saved no turns, and one that was alone owes none.
#[test]
fn a_class_that_nobody_waits_in_leaves_its_seats_to_the_others() {
    let mut play = Play::of_classes(5, &[1, 9]);
    play.arrive_in(0, 12_000, (0, 10_000), 1e12, 0.0);
    play.until(0, 5 * MINUTE, 10.0);
    let alone = play.served_of_class[0];
    assert!(alone >= 2800, "{alone}");
    play.arrive_in(1, 6_000, (5 * MINUTE, 5 * MINUTE + 1000), 1e12, 0.0);
    play.until(5 * MINUTE, 10 * MINUTE, 10.0);
    let [first, second, _] = play.served_of_class;
    println!("{alone} alone, then {} and {second}", first - alone);
    // Those of the first class who were called before still come.
    assert!((2600..=2710).contains(&second), "{second}");
    assert!(first - alone >= 290, "{}", first - alone);
}

#[test]
fn one_who_changes_the_class_keeps_the_time_of_arrival_and_counts_once() {
    let mut line = Line::new(&[1, 4], MINUTES);
    let first = line.refuse(&arrival(Place::of_arrival(at(0), 900)), ALICE, at(0), UNKNOWN, 0.0).waiter;
    let comer = Comer::shows(first, Class(1));
    let early = line.refuse(&comer, ALICE, at(1000), UNKNOWN, 0.0).waiter;
    assert_eq!(early, first, "not before it is time to poll");
    let again = line.refuse(&comer, ALICE, at(5000), UNKNOWN, 0.0).waiter;
    assert_eq!((again.arrived, again.class), (first.arrived, Class(1)));
    let mut waiting = |millis| {
        line.advance(seats(0), at(millis));
        line.figures(at(millis)).classes.iter().map(|class| class.view.waiting).collect::<Vec<_>>()
    };
    assert_eq!(waiting(5250), [0, 1]);
    // The first ticket again.
    line.refuse(&comer, ALICE, at(5500), UNKNOWN, 0.0);
    let mut waiting = |millis| {
        line.advance(seats(0), at(millis));
        line.figures(at(millis)).classes.iter().map(|class| class.view.waiting).collect::<Vec<_>>()
    };
    assert_eq!(waiting(5750), [0, 1]);
    line.serve(&again, Class(1));
    line.advance(seats(0), at(6000));
    let served: Vec<_> = line.figures(at(6000)).classes.iter().map(|class| class.view.served).collect();
    assert_eq!((line.figures(at(6000)).all.view.waiting, served), (0, vec![0, 1]));
}

/// Nobody can tell that ten tokens are one person's, unless tokens are verified.
#[test]
fn ten_tokens_are_ten_places_and_none_of_them_is_sooner() {
    let mut play = Play::new(11);
    play.arrive(3_000, (0, MINUTE), 1e12, 0.0);
    let came = 30_500;
    play.arrive(10, (came, came + 1), 1e12, 0.0);
    play.until(0, 7 * MINUTE, 10.0);
    let waits = |from: u64, until: u64| {
        let some = play.served.iter().filter(|(came, _)| (from..until).contains(came));
        let mut waits: Vec<_> = some.map(|(came, served)| served - came).collect();
        waits.sort_unstable();
        waits
    };
    let (own, others) = (waits(came, came + 1), waits(came - 1000, came + 1000));
    println!("ten tokens waited {own:?} ms; others who came then: median {} ms", others[others.len() / 2]);
    assert!(own.len() >= 10);
    // The first of ten is the one that happens to poll first, five seconds before the last.
    assert!(own[0] + 6000 >= others[others.len() / 2], "{own:?}");
}

/// However large the crowd is, a waiter behind many asks once a minute.
#[test]
fn the_longer_the_line_the_fewer_requests_does_each_waiter_send() {
    let mut most_of_each = f64::INFINITY;
    for crowd in [2_000, 10_000, 50_000] {
        let mut play = Play::new(13);
        play.arrive(crowd, (0, 20_000), 1e12, 0.0);
        play.until(0, MINUTE, 10.0);
        let before = play.polls;
        let most = play.line.figures(at(MINUTE)).all.polls_per_second;
        play.until(MINUTE, MINUTE + 10_000, 10.0);
        let polls = (play.polls - before) as f64 / 10.0;
        println!("{crowd} wait: {polls:.0} requests a second, at most {most:.0}");
        assert!(polls <= 1.1 * most, "{polls} requests a second, not {most}");
        assert!(most / crowd as f64 <= most_of_each);
        most_of_each = most / crowd as f64;
    }
    assert!(most_of_each < 0.04, "{most_of_each}");
}
