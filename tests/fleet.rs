//! Servers that share one store: what each learns of the others, round by round.

use headcount::internals::Protocol;
use headcount::time::{Clock, ManualClock, Timestamp};
use headcount::{Builder, Decision, FilterStore, Headcount, MemoryStore, OverrideMode, OverrideOrder, Rounds, Worker};
use headcount::{StoreError, round};
use parking_lot::Mutex;
use round::{Exchange, Identity, Next, Outcome, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A store that can be cut off, lose replies, and forget values on their way.
#[derive(Clone)]
struct Weather {
    store: MemoryStore,
    away: Arc<AtomicBool>,
    loses_replies: Arc<AtomicBool>,
    hides_values: Arc<AtomicBool>,
    hides_others: Arc<AtomicBool>,
    /// Somebody deletes the list of generations all the time.
    loses_generations: Arc<AtomicBool>,
    /// Somebody adds so many made-up generations that no other one is shown.
    makes_up_generations: Arc<AtomicBool>,
    refuses_writes: Arc<AtomicBool>,
}

impl FilterStore for Weather {
    fn name(&self) -> &'static str {
        "weather"
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        let fetches = matches!(request, Request::Fetch { .. });
        let is_beside = matches!(request, Request::LookBeside { .. } | Request::FetchBeside { .. });
        let is_hidden = (fetches && self.hides_values.load(SeqCst)) || (is_beside && self.hides_others.load(SeqCst));
        if self.away.load(SeqCst) || is_hidden {
            return Err(StoreError::unavailable("cut off"));
        }
        if let (Request::Look { slots, .. }, true) = (&request, self.refuses_writes.load(SeqCst)) {
            let refusal = StoreError::read_only("READONLY");
            return Ok(Reply::Looked(self.store.look_without_writes(identity, slots, refusal)));
        }
        let publishes = matches!(request, Request::Publish(_));
        let mut reply = self.store.exchange(identity, request, within).await;
        if let Ok(Reply::Looked(looked)) = &mut reply {
            let is_lost = self.loses_generations.load(SeqCst);
            looked.has_more_generations = self.makes_up_generations.load(SeqCst);
            if is_lost || looked.has_more_generations {
                looked.other_generations.clear();
            }
            looked.before =
                looked.before.map(|before| round::OwnRecords { listed: before.listed.filter(|_| !is_lost), ..before });
        }
        if publishes && self.loses_replies.load(SeqCst) {
            return Err(StoreError::timeout("the reply was lost"));
        }
        reply
    }
}

struct Server {
    headcount: Headcount,
    worker: Worker,
    rounds: Rounds<Weather>,
    weather: Weather,
}

impl Server {
    async fn round(&mut self) -> Outcome {
        self.worker.tick();
        let outcome = self.rounds.round().await;
        self.worker.tick();
        outcome
    }

    fn decide(&self, token: &str) -> Decision {
        self.headcount.admit(token).decision()
    }

    fn coverage(&self) -> usize {
        self.headcount.status().ring.coverage
    }
}

struct Fleet {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    started: u64,
}

impl Fleet {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        Self { store: MemoryStore::with_clock(Arc::clone(&clock)), clock, started: 0 }
    }

    /// A fleet whose store has another clock than its servers.
    fn with_a_clock_for_the_store() -> (Self, Arc<ManualClock>) {
        let fleet = Self::new();
        let stores = Arc::new(ManualClock::starting_at(fleet.clock.wall()));
        (Self { store: MemoryStore::with_clock(Arc::clone(&stores)), ..fleet }, stores)
    }

    fn start(&mut self) -> Server {
        self.start_as(|builder| builder)
    }

    fn start_as(&mut self, configure: impl FnOnce(Builder) -> Builder) -> Server {
        self.started += 1;
        let builder = Headcount::builder()
            .max_active_users(1000)
            .secret("the key of the whole fleet")
            .clock(Arc::clone(&self.clock))
            .seed(self.started);
        let (headcount, worker) = configure(builder).build().unwrap();
        let off = || Arc::new(AtomicBool::new(false));
        let weather = Weather {
            store: self.store.clone(),
            away: off(),
            loses_replies: off(),
            hides_values: off(),
            hides_others: off(),
            loses_generations: off(),
            makes_up_generations: off(),
            refuses_writes: off(),
        };
        Server { rounds: headcount.sync_with(weather.clone()), headcount, worker, weather }
    }

    /// Lets seconds pass, each with one round of every server, in rotating order.
    async fn pass(&self, seconds: u32, servers: &mut [&mut Server]) {
        for second in 0..seconds as usize {
            self.clock.advance(SECOND);
            let count = servers.len();
            for place in 0..count {
                servers[(second + place) % count].round().await;
            }
        }
    }
}

#[test]
fn a_store_has_neither_a_namespace_nor_connections_unless_it_says_so() {
    let weather = Fleet::new().start().weather;
    assert_eq!((weather.namespace(), weather.connections()), ("", 0));
}

/// Such a server can have no line in the ledger of seats.
#[tokio::test]
async fn a_server_whose_store_has_no_news_logs_counts_as_one_without_beats() {
    for has_logs in [false, true] {
        let mut fleet = Fleet::new();
        let a = fleet.start();
        if has_logs {
            a.headcount.sync_with(fleet.store.clone()).round().await;
        } else {
            a.headcount.sync_with(a.weather.clone()).round().await;
        }
        let b = fleet.start().headcount.exchange("memory", "");
        let look = Request::Look { slots: Vec::new(), names: 0, wants: false, beats: true };
        let Reply::Looked(looked) = fleet.store.answer(&b.identity, look) else { panic!("not the reply to a look") };
        assert_eq!((looked.nodes, looked.without_beats), (2, !has_logs));
    }
}

#[tokio::test]
async fn a_new_fleet_is_covered_after_three_seconds() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    assert_eq!(a.decide("early"), Decision::Warming);
    fleet.pass(3, &mut [&mut a, &mut b]).await;
    assert_eq!((a.coverage(), b.coverage()), (0, 0));
    assert!(!a.headcount.is_ready());
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    assert_eq!((a.coverage(), b.coverage()), (31, 31));
    assert!(a.headcount.is_ready());
    assert_eq!(b.decide("early"), Decision::Seen);
    assert_eq!(b.decide("late"), Decision::Newcomer);
}

#[tokio::test]
async fn a_newcomer_is_known_elsewhere_after_one_round_of_each_server() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    assert_eq!(b.decide("alice"), Decision::Seen);
    assert_eq!(b.headcount.status().active_users.estimate, 1);
    assert_eq!(b.headcount.status().sync.nodes, 2);
}

#[tokio::test]
async fn a_newcomer_of_the_last_moment_of_a_minute_is_known_everywhere() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(59, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    // The minute turns before either has a round; alice sends no more requests.
    fleet.pass(3, &mut [&mut a, &mut b]).await;
    assert_eq!(b.decide("alice"), Decision::Seen);
}

#[tokio::test]
async fn a_token_is_admitted_for_thirty_minutes_and_forgotten_after_thirty_one() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(60, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    fleet.pass(30 * 60, &mut [&mut a, &mut b]).await;
    assert_eq!(b.headcount.status().active_users.estimate, 1);
    fleet.pass(60, &mut [&mut a, &mut b]).await;
    assert_eq!(b.headcount.status().active_users.estimate, 0);
    assert_eq!(b.decide("alice"), Decision::Newcomer);
}

#[tokio::test]
async fn a_joiner_rejects_nobody_before_it_has_read_everything() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start_as(|builder| builder.max_active_users(10));
    fleet.pass(5, &mut [&mut a]).await;
    let mut admitted = Vec::new();
    for player in 0..600 {
        fleet.pass(u32::from(player % 10 == 0), &mut [&mut a]).await;
        let player = format!("player-{player}");
        if a.headcount.admit(&player).is_admitted() {
            admitted.push(player);
        }
    }
    fleet.pass(2, &mut [&mut a]).await;
    let mut joiner = fleet.start_as(|builder| builder.max_active_users(10));
    assert_eq!(joiner.decide("stranger"), Decision::Warming);
    joiner.round().await;
    assert_eq!(joiner.coverage(), 31);
    for player in admitted {
        assert_eq!(joiner.decide(&player), Decision::Seen);
    }
    assert_eq!(joiner.decide("another stranger"), Decision::Rejected);
}

#[tokio::test]
async fn after_a_sleep_of_the_whole_fleet_its_servers_know_that_there_were_no_admissions() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(60, &mut [&mut a]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    fleet.pass(2, &mut [&mut a]).await;
    drop(a);
    fleet.clock.advance(10 * MINUTE);
    let mut b = fleet.start();
    b.round().await;
    assert_eq!(b.coverage(), 31);
    assert_eq!(b.decide("alice"), Decision::Seen);
}

#[tokio::test]
async fn after_a_flush_the_survivors_write_everything_back() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    for minute in 0..35 {
        assert!(a.headcount.admit(format!("player-{minute}")).is_admitted());
        fleet.pass(60, &mut [&mut a, &mut b]).await;
    }
    fleet.store.flush();
    fleet.pass(12, &mut [&mut a, &mut b]).await;
    let mut joiner = fleet.start();
    joiner.round().await;
    assert_eq!(joiner.coverage(), 31);
    for minute in 6..35 {
        assert_eq!(joiner.decide(&format!("player-{minute}")), Decision::Seen, "minute {minute}");
    }
}

#[tokio::test]
async fn an_outage_rejects_no_active_user_and_heals() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(60, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("before"), Decision::Newcomer);
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    for server in [&a, &b] {
        server.weather.away.store(true, SeqCst);
    }
    fleet.pass(150, &mut [&mut a, &mut b]).await;
    assert!(!a.headcount.status().sync.ok);
    assert_eq!((a.decide("before"), b.decide("before")), (Decision::Seen, Decision::Seen));
    // a's own news still counts for the room; b cannot know it yet.
    assert_eq!(a.decide("during"), Decision::Newcomer);
    assert_eq!(b.coverage(), 31);
    for server in [&a, &b] {
        server.weather.away.store(false, SeqCst);
    }
    // Reconnected, b calls no token a newcomer before it has read what a saw.
    b.round().await;
    assert!(b.coverage() < 31);
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    assert_eq!((a.coverage(), b.coverage()), (31, 31));
    assert_eq!(b.decide("during"), Decision::Seen);
}

#[tokio::test]
async fn news_that_cannot_be_read_uncovers_its_minute() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    a.round().await;
    b.weather.hides_values.store(true, SeqCst);
    fleet.clock.advance(SECOND);
    assert_eq!(b.round().await, Outcome::Failure);
    assert_eq!(b.coverage(), 30);
    assert_eq!(b.decide("alice"), Decision::Warming);
    b.weather.hides_values.store(false, SeqCst);
    b.round().await;
    assert_eq!(b.coverage(), 31);
}

#[tokio::test]
async fn a_write_whose_reply_was_lost_harms_nobody() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    a.weather.loses_replies.store(true, SeqCst);
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    assert_eq!(a.round().await, Outcome::Timeout);
    b.round().await;
    assert_eq!(b.decide("alice"), Decision::Seen);
    a.weather.loses_replies.store(false, SeqCst);
    assert_eq!(a.round().await, Outcome::Success);
    assert_eq!(a.round().await, Outcome::Success);
}

#[tokio::test]
async fn a_paused_process_rejects_nobody_until_it_has_read_again() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) =
        (fleet.start_as(|builder| builder.max_active_users(4)), fleet.start_as(|b| b.max_active_users(4)));
    fleet.pass(60, &mut [&mut a, &mut b]).await;
    for player in 0..4 {
        fleet.pass(8, &mut [&mut a, &mut b]).await;
        let _ = a.headcount.admit(format!("player-{player}"));
    }
    // b is paused for five minutes.
    let mut servers = [&mut a];
    fleet.pass(300, &mut servers).await;
    let players = a.headcount.status().active_users.estimate;
    assert!(players > 0);
    b.worker.tick();
    assert_eq!(b.decide("unknown here"), Decision::Warming);
    b.round().await;
    assert_eq!(b.coverage(), 31);
}

#[tokio::test]
async fn a_first_round_that_slept_before_its_end_has_not_succeeded() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(5, &mut [&mut a]).await;
    let mut b = fleet.start();
    let Exchange { identity, mut round, .. } = b.headcount.exchange_by("by hand", "", Protocol::HEADCOUNT);
    let look = round.begin(fleet.clock.monotonic());
    let mut reply = fleet.store.answer(&identity, look);
    fleet.clock.advance(10 * SECOND);
    b.worker.tick();
    while let Next::Ask(request) = round.answer(Ok(reply), fleet.clock.monotonic()) {
        reply = fleet.store.answer(&identity, request);
    }
    assert_eq!(b.headcount.status().sync.last_success_seconds, None);
    fleet.pass(3, &mut [&mut a, &mut b]).await;
    assert_eq!(b.coverage(), 31);
}

#[tokio::test]
async fn a_lone_server_that_paused_knows_that_there_were_no_admissions() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(90, &mut [&mut a]).await;
    // Across one turn, and across many.
    for pause in [58, 300] {
        fleet.clock.advance(Duration::from_secs(pause));
        a.worker.tick();
        assert!(a.coverage() < 31);
        fleet.pass(6, &mut [&mut a]).await;
        assert_eq!(a.coverage(), 31, "after {pause} s");
    }
}

#[tokio::test]
async fn a_server_that_was_killed_and_comes_back_across_a_turn_is_covered_at_once() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(59, &mut [&mut a]).await;
    drop(a);
    fleet.clock.advance(4 * SECOND);
    let mut b = fleet.start();
    b.round().await;
    assert_eq!(b.coverage(), 31);
}

#[tokio::test]
async fn a_round_that_broke_off_loses_no_news() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    // The next rounds start from nothing, as after a panic, and the store has lost everything.
    a.rounds = a.headcount.sync_with(a.weather.clone());
    fleet.store.flush();
    fleet.pass(3, &mut [&mut a, &mut b]).await;
    assert_eq!(b.decide("alice"), Decision::Seen);
}

#[tokio::test]
async fn seats_that_become_free_are_filled_within_25_rounds() {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> = (0..5).map(|_| fleet.start()).collect();
    let mut all: Vec<_> = servers.iter_mut().collect();
    fleet.pass(6, &mut all).await;
    let mut inside = 0;
    for second in 0..25 {
        for (place, server) in all.iter().enumerate() {
            let admitted =
                |newcomer: &u32| server.headcount.admit(format!("{second}-{place}-{newcomer}")).is_admitted();
            inside += (0..500).filter(admitted).count();
        }
        fleet.pass(1, &mut all).await;
    }
    assert!((990..=1020).contains(&inside), "{inside} of 1000 seats were given");
}

#[tokio::test]
async fn a_pause_longer_than_the_window_leaves_nothing_outdated() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(10, &mut [&mut a, &mut b]).await;
    assert_eq!(b.decide("alice"), Decision::Newcomer);
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    fleet.pass(32 * 60, &mut [&mut a]).await;
    b.worker.tick();
    assert_eq!(b.headcount.status().active_users.estimate, 0);
}

#[tokio::test]
async fn an_override_reaches_the_fleet_survives_a_flush_and_can_be_taken_back() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    let order = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: 10 * MINUTE,
        by: None,
        reason: Some("launch".into()),
    };
    a.headcount.set_override(order).unwrap();
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    assert_eq!(b.decide("alice"), Decision::Rejected);
    fleet.store.flush();
    fleet.pass(2, &mut [&mut a, &mut b]).await;
    let mut joiner = fleet.start();
    joiner.round().await;
    assert_eq!(joiner.headcount.status().override_.reason.as_deref(), Some("launch"));
    assert_eq!(b.headcount.clear_override(), Ok(true));
    fleet.pass(2, &mut [&mut a, &mut b, &mut joiner]).await;
    for server in [&a, &b, &joiner] {
        assert_eq!(server.headcount.status().override_.mode, OverrideMode::Auto);
    }
}

#[tokio::test]
async fn an_override_ends_everywhere_by_itself() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    let order = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: MINUTE,
        by: None,
        reason: None,
    };
    a.headcount.set_override(order).unwrap();
    fleet.pass(62, &mut [&mut a, &mut b]).await;
    assert_eq!((a.decide("x"), b.decide("y")), (Decision::Newcomer, Decision::Newcomer));
}

#[tokio::test]
async fn servers_with_another_key_are_an_alarm_and_share_no_users() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(5, &mut [&mut a]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    let mut other = fleet.start_as(|builder| builder.secret("the key of another fleet"));
    fleet.pass(10, &mut [&mut a, &mut other]).await;
    assert!(a.headcount.status().sync.foreign_generation);
    assert!(other.headcount.status().sync.foreign_generation);
    // Its coverage begins with a window of its own: until then it calls no token a newcomer.
    assert_eq!(other.decide("alice"), Decision::Warming);
    assert_eq!(a.headcount.status().active_users.estimate, 1);
    fleet.pass(31 * 60, &mut [&mut a, &mut other]).await;
    assert_eq!(other.coverage(), 31);
}

#[tokio::test]
async fn a_deploy_with_another_key_admits_x_beside_the_active_users() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start_as(|builder| builder.max_active_users(100));
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 100).await;
    let another_key = |builder: Builder| builder.secret("the key of another fleet").max_active_users(100);
    let (mut b, mut c) = (fleet.start_as(another_key), fleet.start_as(another_key));
    let mut came = 0;
    for second in 0..60 {
        fleet.pass(1, &mut [&mut old, &mut b, &mut c]).await;
        // First the active users, a few each second and again and again, then a crowd.
        for place in 0..40 {
            let token =
                if second < 30 { format!("user-{}", (40 * second + place) % 100) } else { format!("{second}-{place}") };
            let server = [&b, &c][place % 2];
            came += usize::from(matches!(server.decide(&token), Decision::Warming | Decision::Newcomer));
        }
        if second == 29 {
            assert!(
                (0..100).all(|user| b.decide(&format!("user-{user}")) == Decision::Seen),
                "an active user is still admitted"
            );
        }
    }
    assert!(came <= 105, "{came} came in beside the 100 who were");
}

/// Admits this many users, as far as there is room.
async fn fill(fleet: &Fleet, servers: &mut [&mut Server], users: usize) {
    let mut left: Vec<_> = (0..users).map(|user| format!("user-{user}")).collect();
    for _ in 0..120 {
        left.retain(|user| !matches!(servers[0].decide(user), Decision::Newcomer | Decision::Seen | Decision::Warming));
        fleet.pass(1, servers).await;
    }
    assert!(left.len() <= 2, "{} of {users} were not admitted", left.len());
}

#[tokio::test]
async fn a_deploy_of_another_capacity_keeps_all_users_in_and_the_room_full() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(5, &mut [&mut a, &mut b]).await;
    fill(&fleet, &mut [&mut a, &mut b], 1000).await;
    let larger = |builder: Builder| builder.capacity(50_000);
    let mut first = fleet.start_as(larger);
    assert_eq!(first.decide("user-1"), Decision::Warming, "nothing is read yet");
    fleet.pass(1, &mut [&mut a, &mut b, &mut first]).await;
    assert_eq!(first.decide("user-2"), Decision::Seen, "the first round has read the users");
    assert!(first.headcount.touch("user-3"));
    let (admission, seat) = first.headcount.hold("user-4");
    assert_eq!((admission.decision(), seat.is_none()), (Decision::Seen, true));
    fleet.pass(5, &mut [&mut a, &mut b, &mut first]).await;
    assert_eq!(first.coverage(), 31, "no window has to be lived");
    assert!(first.headcount.is_ready());

    // Half of them move to the new server, and are counted once.
    assert!((0..500).all(|user| first.decide(&format!("user-{user}")) == Decision::Seen));
    let mut let_in = 0;
    for second in 0..60 {
        for (place, server) in [&a, &b, &first].into_iter().enumerate() {
            let_in += (0..20).filter(|n| server.decide(&format!("{second}-{place}-{n}")) == Decision::Newcomer).count();
        }
        fleet.pass(1, &mut [&mut a, &mut b, &mut first]).await;
    }
    assert!(let_in <= 20, "{let_in} came into a full house");
    for server in [&a, &b, &first] {
        let estimate = server.headcount.status().active_users.estimate;
        assert!((985..=1025).contains(&estimate), "{estimate}, where 1000 are in");
        assert!((0..1000).all(|user| server.decide(&format!("user-{user}")) == Decision::Seen));
    }

    // The old servers stop, and a second new one starts: the first has told it that there were no users before.
    let mut second = fleet.start_as(larger);
    drop((a, b));
    fleet.pass(1, &mut [&mut first, &mut second]).await;
    assert_eq!((second.coverage(), second.decide("user-999")), (31, Decision::Seen));
    fleet.pass(31 * 60, &mut [&mut first, &mut second]).await;
    assert_eq!(first.headcount.status().active_users.estimate, 0, "who is silent is forgotten");
    fleet.pass(5 * 60, &mut [&mut first, &mut second]).await;
    assert!(!first.headcount.status().sync.foreign_generation);
}

#[tokio::test]
async fn a_deploy_of_another_window_with_slots_of_the_same_length_keeps_all_users_in() {
    for slots in [20, 60] {
        let mut fleet = Fleet::new();
        let mut old = fleet.start();
        fleet.pass(5, &mut [&mut old]).await;
        fill(&fleet, &mut [&mut old], 1000).await;
        let minutes = Duration::from_secs(60) * slots;
        let mut new = fleet.start_as(|builder| builder.window(minutes).slots(slots));
        fleet.pass(6, &mut [&mut old, &mut new]).await;
        let known = (0..1000).filter(|user| new.decide(&format!("user-{user}")) == Decision::Seen);
        assert_eq!(known.count(), 1000, "{slots} slots");
        let mut let_in = 0;
        for second in 0..60 {
            let_in += (0..20).filter(|n| new.headcount.admit(format!("{second}-{n}")).is_admitted()).count();
            fleet.pass(1, &mut [&mut old, &mut new]).await;
        }
        assert!(let_in <= 20, "{let_in} came into a full house with {slots} slots");
    }
}

#[tokio::test]
async fn a_deploy_of_another_key_that_names_the_former_keeps_all_users_in_and_the_room_full() {
    let former = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(former.path(), "the key of the whole fleet\n").unwrap();
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 1000).await;
    let files = [former.path()];
    let mut new = fleet
        .start_as(|builder| builder.secret("the key that comes after").earlier_secret_files(files).capacity(50_000));
    fleet.pass(6, &mut [&mut old, &mut new]).await;
    assert_eq!(new.coverage(), 31, "no window has to be lived");
    let known =
        |from: usize, to: usize| (from..to).filter(|user| new.decide(&format!("user-{user}")) == Decision::Seen);
    assert_eq!(known(0, 500).count(), 500);
    assert!((500..1000).all(|user| new.headcount.touch(format!("user-{user}"))));
    let mut let_in = 0;
    for second in 0..60 {
        let_in += (0..20).filter(|n| new.decide(&format!("{second}-{n}")) == Decision::Newcomer).count();
        fleet.pass(1, &mut [&mut old, &mut new]).await;
    }
    assert!(let_in <= 20, "{let_in} came into a full house");
    // A user who asks stays in under the new key, for as long as before.
    drop(old);
    for _ in 0..60 {
        let known = (0..1000).filter(|user| new.decide(&format!("user-{user}")) == Decision::Seen);
        assert_eq!(known.count(), 1000);
        fleet.pass(60, &mut [&mut new]).await;
    }
    let estimate = new.headcount.status().active_users.estimate;
    assert!((985..=1025).contains(&estimate), "{estimate}, where 1000 are in");
}

#[tokio::test]
async fn during_a_deploy_newcomers_of_each_generation_are_seen_by_the_other() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    assert_eq!(old.decide("alice"), Decision::Newcomer);
    fleet.pass(1, &mut [&mut old]).await;
    let mut new = fleet.start_as(|builder| builder.capacity(50_000));
    fleet.pass(10, &mut [&mut old, &mut new]).await;
    assert!(new.headcount.status().sync.bytes_received > 0, "what is read of other generations counts, too");
    assert_eq!((old.decide("bob"), new.decide("carol")), (Decision::Newcomer, Decision::Newcomer));
    fleet.pass(2, &mut [&mut old, &mut new]).await;
    assert_eq!((new.decide("bob"), old.decide("carol")), (Decision::Seen, Decision::Seen));
    assert!(new.headcount.touch("alice"));
    fleet.pass(2, &mut [&mut old, &mut new]).await;
    let estimates = [&old, &new].map(|server| server.headcount.status().active_users.estimate);
    assert_eq!(estimates, [3, 3], "who is known to both is one user");
    // What a server reads of others keeps no user in beyond the window.
    fleet.pass(32 * 60, &mut [&mut old, &mut new]).await;
    let estimates = [&old, &new].map(|server| server.headcount.status().active_users.estimate);
    assert_eq!(estimates, [0, 0]);
}

/// Returns how many newcomers are admitted beside `users` within a minute, by an old server and two with another
/// capacity. Generations are hidden from both sides since `hidden_from` seconds after the start of the new servers.
async fn admitted_while_hidden(hide: impl Fn(&Server), users: usize, hidden_from: u32) -> usize {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], users).await;
    let larger = |builder: Builder| builder.capacity(50_000);
    let (mut one, mut other) = (fleet.start_as(larger), fleet.start_as(larger));
    fleet.pass(hidden_from, &mut [&mut old, &mut one, &mut other]).await;
    [&old, &one, &other].into_iter().for_each(&hide);
    let mut admitted = 0;
    for second in 0..60 {
        fleet.pass(1, &mut [&mut old, &mut one, &mut other]).await;
        for (place, server) in [&old, &one, &other].into_iter().enumerate() {
            let newcomers = (0..20).map(|newcomer| format!("{second}-{newcomer} at {place}"));
            admitted += newcomers.filter(|token| server.headcount.admit(token).is_admitted()).count();
        }
    }
    admitted
}

#[tokio::test]
async fn generations_that_the_store_hides_are_asked_for_once_they_are_known() {
    let loses = |server: &Server| server.weather.loses_generations.store(true, SeqCst);
    let makes_up = |server: &Server| server.weather.makes_up_generations.store(true, SeqCst);
    for admitted in [admitted_while_hidden(loses, 500, 6).await, admitted_while_hidden(makes_up, 500, 6).await] {
        assert!((490..=520).contains(&admitted), "{admitted} came in beside 500");
    }
}

#[tokio::test]
async fn servers_that_start_while_generations_are_hidden_admit_ten_each() {
    let loses = |server: &Server| server.weather.loses_generations.store(true, SeqCst);
    let makes_up = |server: &Server| server.weather.makes_up_generations.store(true, SeqCst);
    for admitted in [admitted_while_hidden(loses, 1000, 0).await, admitted_while_hidden(makes_up, 1000, 0).await] {
        assert!(admitted <= 40, "{admitted} came into a full house");
    }
}

#[tokio::test]
async fn a_server_that_restarts_while_there_are_too_many_generations_admits_ten() {
    let mut fleet = Fleet::new();
    let (mut one, mut other) = (fleet.start(), fleet.start());
    fleet.pass(6, &mut [&mut one, &mut other]).await;
    drop(other);
    let mut other = fleet.start();
    other.weather.makes_up_generations.store(true, SeqCst);
    let mut admitted = 0;
    for second in 0..30 {
        fleet.pass(1, &mut [&mut one, &mut other]).await;
        let newcomers = (0..20).filter(|newcomer| other.headcount.admit(format!("{second}-{newcomer}")).is_admitted());
        admitted += newcomers.count();
    }
    assert_eq!(admitted, 10);
    assert!(other.headcount.status().sync.loses_values, "the operator is told");
    other.weather.makes_up_generations.store(false, SeqCst);
    fleet.pass(10, &mut [&mut one, &mut other]).await;
    assert!(other.headcount.admit("later").is_admitted());
    assert!(other.headcount.status().sync.ok);
}

/// Lets newcomers ask each of these servers for so many seconds. Returns how many each has admitted.
async fn admitted_by_each(fleet: &Fleet, seconds: u32, servers: &mut [&mut Server]) -> Vec<usize> {
    let mut admitted = vec![0; servers.len()];
    for second in 0..seconds {
        fleet.pass(1, servers).await;
        for (place, server) in servers.iter().enumerate() {
            let newcomers = (0..20).map(|newcomer| format!("{second}-{newcomer} at {place}"));
            let is_new = |token: &String| matches!(server.decide(token), Decision::Newcomer | Decision::Warming);
            admitted[place] += newcomers.filter(is_new).count();
        }
    }
    admitted
}

#[tokio::test]
async fn values_that_are_damaged_in_place_are_replaced() {
    let mut fleet = Fleet::new();
    let (mut one, mut other) = (fleet.start(), fleet.start());
    fleet.pass(6, &mut [&mut one, &mut other]).await;
    fill(&fleet, &mut [&mut one, &mut other], 500).await;
    fleet.store.damage_values();
    fleet.pass(30, &mut [&mut one, &mut other]).await;
    assert!(one.headcount.status().sync.corrupt + other.headcount.status().sync.corrupt > 0);
    drop((one, other));
    let mut third = fleet.start();
    fleet.pass(5, &mut [&mut third]).await;
    assert!((0..498).all(|user| third.decide(&format!("user-{user}")) == Decision::Seen));
    assert_eq!(third.headcount.status().sync.corrupt, 0);
}

#[tokio::test]
async fn a_server_that_starts_before_damaged_values_are_replaced_admits_ten() {
    let mut fleet = Fleet::new();
    let longer = |builder: Builder| builder.slots(120).window(120 * SECOND);
    let (mut one, mut other) = (fleet.start_as(longer), fleet.start_as(longer));
    fleet.pass(6, &mut [&mut one, &mut other]).await;
    for user in 0..900 {
        assert!(one.headcount.admit(format!("user-{user}")).is_admitted() || user > 100);
        if user % 10 == 9 {
            fleet.pass(1, &mut [&mut one, &mut other]).await;
        }
    }
    fleet.store.damage_values();
    let mut third = fleet.start_as(longer);
    let admitted = admitted_by_each(&fleet, 8, &mut [&mut third, &mut one, &mut other]).await;
    assert!(admitted[0] > 0 && admitted.iter().sum::<usize>() <= 110, "{admitted:?} came in beside 900");
}

#[tokio::test]
async fn during_a_deploy_values_that_were_damaged_in_place_do_not_fill_the_house_twice() {
    for with_key in [false, true] {
        let former = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(former.path(), "the key of the whole fleet").unwrap();
        let mut fleet = Fleet::new();
        let (mut old, mut older) = (fleet.start(), fleet.start());
        fleet.pass(6, &mut [&mut old, &mut older]).await;
        fill(&fleet, &mut [&mut old, &mut older], 900).await;
        fleet.store.damage_values();
        let next = |builder: Builder| match with_key {
            true => builder.secret("the key that comes after").earlier_secret_files([former.path()]),
            false => builder.capacity(50_000),
        };
        let (mut one, mut other) = (fleet.start_as(next), fleet.start_as(next));
        let mut all = [&mut one, &mut other, &mut old, &mut older];
        let admitted = admitted_by_each(&fleet, 5, &mut all).await;
        assert!(admitted[0] <= 10 && admitted[1] <= 10, "{admitted:?}");
        let later = admitted_by_each(&fleet, 60, &mut all).await;
        let sum = admitted.iter().chain(&later).sum::<usize>();
        assert!(sum <= 130, "{admitted:?} and {later:?} came in beside 900");
        assert!((0..898).all(|user| one.decide(&format!("user-{user}")) == Decision::Seen), "they are replaced");
    }
}

#[tokio::test]
async fn a_whole_fleet_that_is_stopped_and_started_with_another_capacity_knows_its_users() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 1000).await;
    drop(old);
    let mut new = fleet.start_as(|builder| builder.capacity(20_000));
    fleet.pass(6, &mut [&mut new]).await;
    assert_eq!(new.coverage(), 31);
    let strangers = (0..100).filter(|stranger| new.decide(&format!("stranger-{stranger}")) != Decision::Rejected);
    assert!(strangers.count() < 20);
    assert!((0..990).all(|user| new.decide(&format!("user-{user}")) == Decision::Seen));
}

#[tokio::test]
async fn a_flush_during_a_deploy_forgets_no_user_and_frees_no_seat() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 1000).await;
    let larger = |builder: Builder| builder.capacity(50_000);
    let (mut one, mut other) = (fleet.start_as(larger), fleet.start_as(larger));
    fleet.pass(6, &mut [&mut old, &mut one, &mut other]).await;
    // The old server has stopped: only the new ones' memory knows the users.
    drop(old);
    fleet.store.flush();
    let mut strangers = 0;
    for second in 0..30 {
        fleet.pass(1, &mut [&mut one, &mut other]).await;
        for server in [&one, &other] {
            strangers += (0..20).filter(|n| server.decide(&format!("{second}-{n}")) != Decision::Rejected).count();
        }
    }
    assert!(strangers <= 20, "{strangers} came into a full house");
    for server in [&one, &other] {
        assert!((0..1000).all(|user| server.decide(&format!("user-{user}")) == Decision::Seen));
    }
}

#[tokio::test]
async fn writes_that_are_refused_during_a_deploy_hide_nobody() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 1000).await;
    let mut new = fleet.start_as(|builder| builder.capacity(50_000));
    fleet.pass(6, &mut [&mut old, &mut new]).await;
    new.weather.refuses_writes.store(true, SeqCst);
    for _ in 0..130 {
        fleet.pass(1, &mut [&mut old, &mut new]).await;
        let estimate = new.headcount.status().active_users.estimate;
        assert!((970..=1030).contains(&estimate), "{estimate}, where 1000 are in");
    }
}

#[tokio::test]
async fn after_a_change_of_the_key_the_former_keys_servers_share_out_the_room_until_they_have_stopped() {
    let former = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(former.path(), "the key of the whole fleet").unwrap();
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 200).await;
    let after = |builder: Builder| builder.secret("the key that comes after").earlier_secret_files([former.path()]);
    let mut new = fleet.start_as(after);
    fleet.pass(6, &mut [&mut old, &mut new]).await;
    let came = |server: &Server, place: &str, second: u32| {
        (0..40).filter(|n| server.decide(&format!("{place}-{second}-{n}")) == Decision::Newcomer).count()
    };
    let (mut came_old, mut came_new) = (0, 0);
    for second in 0..60 {
        came_old += came(&old, "old", second);
        came_new += came(&new, "new", second);
        fleet.pass(1, &mut [&mut old, &mut new]).await;
    }
    assert_eq!(came_new, 0, "the old server could not know of them");
    assert!((780..=820).contains(&came_old), "{came_old} came in beside 200");
    drop(old);
    // Half of them leave; when the old server no longer counts, the new one fills their seats.
    for _ in 0..31 {
        fleet.pass(60, &mut [&mut new]).await;
        assert!((0..100).all(|user| new.decide(&format!("user-{user}")) == Decision::Seen));
    }
    let (mut came_later, mut second) = (0, 0);
    while second < 60 {
        came_later += came(&new, "later", second);
        fleet.pass(1, &mut [&mut new]).await;
        second += 1;
    }
    assert!((880..=920).contains(&came_later), "{came_later} came in beside 100");
}

#[tokio::test]
async fn trouble_with_another_generation_stops_no_news_and_fails_the_round() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    let larger = |builder: Builder| builder.capacity(50_000);
    let (mut one, mut other) = (fleet.start_as(larger), fleet.start_as(larger));
    fleet.pass(6, &mut [&mut old, &mut one, &mut other]).await;
    one.weather.hides_others.store(true, SeqCst);
    assert_eq!((one.decide("alice"), other.decide("bob")), (Decision::Newcomer, Decision::Newcomer));
    fleet.clock.advance(SECOND);
    assert_eq!((one.round().await, other.round().await), (Outcome::Failure, Outcome::Success));
    fleet.clock.advance(SECOND);
    assert_eq!(one.round().await, Outcome::Failure);
    assert_eq!((one.decide("bob"), other.decide("alice")), (Decision::Seen, Decision::Seen));
    for _ in 0..5 {
        fleet.clock.advance(SECOND);
        assert_eq!(one.round().await, Outcome::Failure);
    }
    assert!(!one.headcount.status().sync.ok, "five seconds without a successful round are an outage");
    one.weather.hides_others.store(false, SeqCst);
    fleet.clock.advance(SECOND);
    assert_eq!(one.round().await, Outcome::Success);
    assert!(one.headcount.status().sync.ok);
}

#[tokio::test]
async fn users_of_another_generation_stay_in_while_its_values_cannot_be_fetched() {
    let mut fleet = Fleet::new();
    let mut old = fleet.start();
    fleet.pass(5, &mut [&mut old]).await;
    fill(&fleet, &mut [&mut old], 1000).await;
    let mut new = fleet.start_as(|builder| builder.capacity(50_000));
    fleet.pass(6, &mut [&mut old, &mut new]).await;
    new.weather.away.store(true, SeqCst);
    fleet.pass(120, &mut [&mut old, &mut new]).await;
    assert!((0..990).all(|user| new.decide(&format!("user-{user}")) == Decision::Seen));
    let strangers = (0..100).filter(|stranger| new.decide(&format!("stranger-{stranger}")) != Decision::Rejected);
    assert!(strangers.count() < 20);
}

#[tokio::test]
async fn a_fleet_stays_within_x_however_fast_newcomers_arrive() {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> = (0..10).map(|_| fleet.start()).collect();
    let mut all: Vec<_> = servers.iter_mut().collect();
    fleet.pass(6, &mut all).await;
    let mut inside = 0;
    for second in 0..60 {
        for (place, server) in all.iter().enumerate() {
            for newcomer in 0..500 {
                let token = format!("{second}-{place}-{newcomer}");
                inside += usize::from(server.headcount.admit(token).is_admitted());
            }
        }
        fleet.pass(1, &mut all).await;
    }
    assert!((980..=1020).contains(&inside), "{inside} of 1000 seats were given");
}

#[tokio::test]
async fn the_first_look_corrects_a_machine_whose_clock_is_wrong() {
    let mut fleet = Fleet::new();
    let mut a = fleet.start();
    fleet.pass(5, &mut [&mut a]).await;
    assert_eq!(a.decide("alice"), Decision::Newcomer);
    fleet.pass(2, &mut [&mut a]).await;
    let wrong = Arc::new(ManualClock::starting_at(Timestamp::from_micros(fleet.clock.wall().as_micros() / 2)));
    let mut b = fleet.start_as(|builder| builder.clock(wrong));
    assert_eq!(b.decide("bob"), Decision::Warming);
    b.round().await;
    assert_eq!(b.coverage(), 31);
    assert_eq!((b.decide("alice"), b.decide("bob")), (Decision::Seen, Decision::Seen));
}

#[tokio::test]
async fn after_a_step_of_the_stores_clock_nobody_is_a_newcomer_before_the_minute_is_read() {
    let (mut fleet, stores) = Fleet::with_a_clock_for_the_store();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    for _ in 0..20 {
        stores.advance(SECOND);
        fleet.pass(1, &mut [&mut a, &mut b]).await;
    }
    assert_eq!((a.coverage(), b.coverage()), (31, 31));
    stores.advance(MINUTE + SECOND);
    fleet.clock.advance(SECOND);
    // a learns of the step, and admits somebody in the minute that it has led to.
    a.round().await;
    assert!(a.headcount.admit("alice").is_admitted());
    a.round().await;
    // b rejects newcomers, and has asked for the minutes of the old clock.
    let throttling = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: 10 * MINUTE,
        by: None,
        reason: None,
    };
    b.headcount.set_override(throttling).unwrap();
    assert_eq!(b.decide("stranger"), Decision::Rejected);
    assert_eq!(b.round().await, Outcome::Success);
    assert_eq!(b.coverage(), 30);
    assert_eq!(b.decide("bob"), Decision::Warming);
    // The next round has asked for the minute, and read it.
    b.round().await;
    assert_eq!((a.coverage(), b.coverage()), (31, 31));
    assert_eq!((b.decide("alice"), b.decide("another stranger")), (Decision::Seen, Decision::Rejected));
}

#[tokio::test]
async fn a_step_of_the_stores_clock_within_a_minute_costs_no_round() {
    let (mut fleet, stores) = Fleet::with_a_clock_for_the_store();
    let mut a = fleet.start();
    for _ in 0..10 {
        stores.advance(SECOND);
        fleet.pass(1, &mut [&mut a]).await;
    }
    stores.advance(20 * SECOND);
    fleet.pass(1, &mut [&mut a]).await;
    assert_eq!(a.coverage(), 31);
}

#[tokio::test]
async fn until_the_worker_has_turned_to_the_minute_of_a_stepped_clock_no_round_makes_newcomers() {
    let (mut fleet, stores) = Fleet::with_a_clock_for_the_store();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    for _ in 0..20 {
        stores.advance(SECOND);
        fleet.pass(1, &mut [&mut a, &mut b]).await;
    }
    // Into the first moment of the next minute, so that no server is late yet.
    stores.advance(40 * SECOND + SECOND / 100);
    a.round().await;
    assert!(a.headcount.admit("alice").is_admitted());
    a.round().await;
    let throttling = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: 10 * MINUTE,
        by: None,
        reason: None,
    };
    b.headcount.set_override(throttling).unwrap();
    for player in ["bob", "carol", "dave"] {
        b.rounds.round().await;
        assert_eq!(b.coverage(), 30);
        assert_eq!(b.decide(player), Decision::Warming);
    }
    b.round().await;
    assert_eq!((b.decide("alice"), b.decide("stranger")), (Decision::Seen, Decision::Rejected));
}

#[tokio::test]
async fn a_small_correction_of_the_clock_at_a_minutes_turn_costs_no_round() {
    let (mut fleet, stores) = Fleet::with_a_clock_for_the_store();
    let mut a = fleet.start();
    // One second before the turn.
    for _ in 0..59 {
        stores.advance(SECOND);
        fleet.pass(1, &mut [&mut a]).await;
    }
    assert_eq!(a.coverage(), 31);
    stores.advance(SECOND);
    fleet.clock.advance(SECOND - Duration::from_millis(50));
    assert_eq!(a.round().await, Outcome::Success);
    assert_eq!(a.coverage(), 31);
    assert_eq!(a.decide("alice"), Decision::Newcomer);
}

// --- the loop, in tokio's paused time ---

/// A clock that follows tokio's, from the beginning of a minute on.
#[derive(Clone, Copy)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000).plus(self.0.elapsed())
    }
}

/// A store that records when it is looked at, and may let every write lose.
#[derive(Clone)]
struct Noting {
    store: MemoryStore,
    clock: PausedClock,
    looks: Arc<Mutex<Vec<Duration>>>,
    every_write_loses: bool,
}

impl Noting {
    fn new(every_write_loses: bool) -> Self {
        let clock = PausedClock(Instant::now());
        Self { store: MemoryStore::with_clock(clock), clock, looks: Arc::default(), every_write_loses }
    }

    /// A server that begins its rounds, one a second.
    fn start(&self) -> (Headcount, Worker, tokio::task::JoinHandle<()>) {
        let builder = Headcount::builder().max_active_users(1000).secret("the key of the whole fleet");
        let (headcount, worker) = builder.clock(self.clock).seed(1).build().unwrap();
        let running = tokio::spawn(headcount.sync_with(self.clone()).run());
        (headcount, worker, running)
    }

    fn looks_since(&self, begin: Duration) -> Vec<Duration> {
        self.looks.lock().iter().copied().filter(|&look| look >= begin).collect()
    }
}

impl FilterStore for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        if matches!(request, Request::Look { .. }) {
            self.looks.lock().push(self.clock.monotonic());
        }
        sleep(Duration::from_millis(1)).await;
        match request {
            Request::Publish(news) if self.every_write_loses => {
                let written = news.minutes.iter().map(|_| false).collect();
                Ok(Reply::Published(round::Published { written, since: None }))
            }
            request => self.store.exchange(identity, request, within).await,
        }
    }
}

fn throttle(headcount: &Headcount) {
    let (mode, lasting) = (OverrideMode::Throttling, MINUTE);
    let order =
        OverrideOrder { mode, max_active_users: None, newcomers_per_minute: None, lasting, by: None, reason: None };
    headcount.set_override(order).unwrap();
}

#[tokio::test(start_paused = true)]
async fn fifty_overrides_in_half_a_second_delay_no_regular_round() {
    let store = Noting::new(false);
    let (headcount, _worker, _running) = store.start();
    sleep(3 * SECOND).await;
    let begun = store.clock.monotonic();
    for _ in 0..50 {
        throttle(&headcount);
        sleep(SECOND / 100).await;
    }
    sleep(10 * SECOND).await;
    let looks = store.looks_since(begun);
    assert!(looks[0] - begun <= SECOND / 50, "the first override is sent at once: {looks:?}");
    assert!(looks.iter().filter(|&&look| look < begun + SECOND / 2).count() <= 2, "{looks:?}");
    assert!((10..=13).contains(&looks.len()), "{looks:?}");
    assert!(looks.windows(2).all(|pair| pair[1] - pair[0] < 2 * SECOND), "{looks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_overrides_a_second_cost_one_more_round_a_second() {
    let store = Noting::new(false);
    let (headcount, _worker, _running) = store.start();
    sleep(3 * SECOND).await;
    let begun = store.clock.monotonic();
    for _ in 0..2000 {
        throttle(&headcount);
        sleep(SECOND / 100).await;
    }
    let flood = store.looks_since(begun).len();
    assert!((30..=41).contains(&flood), "{flood} rounds in 20 s");
    // The last override is in the store a period later.
    let last = headcount.status().override_.until;
    sleep(SECOND).await;
    let (other, _, _other_running) = store.start();
    sleep(SECOND / 10).await;
    assert_eq!(other.status().override_.until, last);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_whose_writes_lose_tries_again_after_growing_delays() {
    let store = Noting::new(true);
    let (headcount, mut worker, running) = store.start();
    sleep(5 * SECOND).await;
    let _ = headcount.admit("alice");
    worker.tick();
    let begun = store.clock.monotonic();
    headcount.stop().await;
    assert!(store.clock.monotonic() - begun >= 2 * SECOND, "it waits for its last round");
    running.await.unwrap();
    let looks = store.looks_since(begun);
    assert!((6..=20).contains(&looks.len()), "{looks:?}");
    let gaps: Vec<_> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= SECOND / 40), "{gaps:?}");
    assert!(gaps.last() > gaps.first(), "{gaps:?}");
    assert!(store.clock.monotonic() - begun <= 2 * SECOND + SECOND / 10);
    assert_eq!(headcount.status().restarts.rounds, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_that_has_published_everything_leaves_at_once() {
    let store = Noting::new(false);
    let (headcount, mut worker, running) = store.start();
    sleep(5 * SECOND).await;
    let _ = headcount.admit("alice");
    worker.tick();
    let begun = store.clock.monotonic();
    headcount.stop().await;
    assert!(store.clock.monotonic() - begun < SECOND / 2);
    running.await.unwrap();
    assert_eq!(headcount.status().restarts.rounds, 0);
}

/// Returns when the first round of the second minute looked, if the worker turned the minute at once, or never.
async fn first_look_of_the_second_minute(turns: bool) -> Duration {
    let store = Noting::new(false);
    let (_headcount, mut worker, _running) = store.start();
    sleep(MINUTE).await;
    if turns {
        worker.tick();
    }
    sleep(2 * SECOND).await;
    store.looks_since(MINUTE)[0]
}

#[tokio::test(start_paused = true)]
async fn a_round_waits_for_a_moment_until_the_minute_has_turned() {
    let planned = first_look_of_the_second_minute(true).await;
    let waited = first_look_of_the_second_minute(false).await - planned;
    assert!((SECOND / 5..SECOND / 4).contains(&waited), "it waited for {waited:?}");
}

#[tokio::test]
async fn a_held_seat_that_is_taken_reduces_the_servers_share() {
    let mut fleet = Fleet::new();
    let (mut a, mut b) = (fleet.start(), fleet.start());
    fleet.pass(6, &mut [&mut a, &mut b]).await;
    let share = a.headcount.status().share;
    assert!(share > 10, "{share}");
    for player in 0..10 {
        let (_, seat) = a.headcount.hold(format!("login-{player}"));
        seat.expect("an admitted newcomer's seat is held").take();
    }
    assert_eq!(a.headcount.status().share, share - 10);
    // No round happens in between: the server admits as many newcomers as its share has seats left.
    let admitted = (0..2 * share).filter(|player| a.headcount.admit(format!("player-{player}")).is_admitted()).count();
    assert_eq!(admitted as u64, share - 10);
}

// --- the room, while something is wrong ---

/// A fleet that is full, and as many newcomers who ask.
async fn a_full_house(servers: usize, max_active_users: u64) -> (Fleet, Vec<Server>) {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> =
        (0..servers).map(|_| fleet.start_as(|builder| builder.max_active_users(max_active_users))).collect();
    pass_all(&fleet, 6, &mut servers).await;
    for round in 0..120 {
        for (place, server) in servers.iter().enumerate() {
            (0..50).for_each(|player| _ = server.decide(&format!("first-{round}-{place}-{player}")));
        }
        pass_all(&fleet, 1, &mut servers).await;
    }
    assert_eq!(servers[0].headcount.status().room, 0, "the fleet is full");
    (fleet, servers)
}

async fn pass_all(fleet: &Fleet, seconds: u32, servers: &mut [Server]) {
    fleet.pass(seconds, &mut servers.iter_mut().collect::<Vec<_>>()).await;
}

/// Each server is asked about tokens that it has never seen. Returns how many were admitted.
fn crowd(servers: &[Server], mark: &str) -> usize {
    let asks = |(place, server): (usize, &Server)| {
        (0..200).filter(|player| server.headcount.admit(format!("{mark}-{place}-{player}")).is_admitted()).count()
    };
    servers.iter().enumerate().map(asks).sum()
}

#[tokio::test]
async fn a_full_fleet_stays_full_after_a_stall_over_a_minutes_turn() {
    let (fleet, mut servers) = a_full_house(3, 500).await;
    let mut admitted = 0;
    for stall in 0..3 {
        // To the last second of the minute, and two seconds more, without a store.
        while fleet.clock.wall().as_millis() % 60_000 != 59_000 {
            pass_all(&fleet, 1, &mut servers).await;
        }
        servers.iter().for_each(|server| server.weather.away.store(true, SeqCst));
        for second in 0..3 {
            admitted += crowd(&servers, &format!("stalled-{stall}-{second}"));
            pass_all(&fleet, 1, &mut servers).await;
        }
        servers.iter().for_each(|server| server.weather.away.store(false, SeqCst));
        for second in 0..10 {
            admitted += crowd(&servers, &format!("back-{stall}-{second}"));
            pass_all(&fleet, 1, &mut servers).await;
            let coverage: Vec<_> = servers.iter().map(Server::coverage).collect();
            assert!(second < 3 || coverage == [31; 3], "{coverage:?} after {second} rounds");
        }
    }
    assert!(admitted <= 25, "{admitted} of a crowd came into a full house of 500");
}

#[tokio::test]
async fn refused_writes_give_no_shares_and_no_doubts() {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> = (0..6).map(|_| fleet.start_as(|builder| builder.max_active_users(600))).collect();
    pass_all(&fleet, 6, &mut servers).await;
    servers.iter().for_each(|server| server.weather.refuses_writes.store(true, SeqCst));
    let mut admitted = 0;
    for second in 0..30 {
        admitted += crowd(&servers, &format!("{second}"));
        pass_all(&fleet, 1, &mut servers).await;
    }
    assert!((550..=612).contains(&admitted), "{admitted} came in, where 600 may");
    let status = servers[0].headcount.status();
    assert!(!status.sync.ok && status.sync.write_refused.is_some() && status.ready);
    assert_eq!(status.ring.coverage, 31);
    servers.iter().for_each(|server| server.weather.refuses_writes.store(false, SeqCst));
    pass_all(&fleet, 10, &mut servers).await;
    assert!(servers.iter().all(|server| server.headcount.status().sync.ok));
    let estimates: Vec<_> = servers.iter().map(|server| server.headcount.status().active_users.estimate).collect();
    assert!(estimates.iter().all(|estimate| *estimate == estimates[0]), "all know of all: {estimates:?}");
    let shares: u64 = servers.iter().map(|server| server.headcount.status().share).sum();
    assert_eq!(crowd(&servers, "later") as u64, shares, "seats that were handed out, and no more");
    assert!(shares <= 2, "the fleet is full, but for the estimate's error");
}

#[tokio::test]
async fn after_a_flush_no_server_believes_that_it_is_alone() {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> = (0..50).map(|_| fleet.start_as(|builder| builder.max_active_users(5000))).collect();
    pass_all(&fleet, 6, &mut servers).await;
    for server in &mut servers {
        fleet.store.flush();
        server.round().await;
        let share = server.headcount.status().share;
        assert!(share <= 26, "a fiftieth of a quarter of 5000, and not {share}");
    }
}

#[tokio::test]
async fn a_server_whose_rounds_stopped_is_away_after_a_while_and_reports_it() {
    let mut fleet = Fleet::new();
    let mut server = fleet.start_as(|builder| builder.on_outage(headcount::OnOutage::Closed));
    pass_all(&fleet, 6, std::slice::from_mut(&mut server)).await;
    assert!(server.headcount.status().sync.ok);
    for _ in 0..6 {
        fleet.clock.advance(SECOND);
        server.worker.tick();
    }
    assert!(!server.headcount.status().sync.ok, "no round has succeeded for more than five periods");
    assert_eq!(server.decide("alice"), Decision::Rejected, "and `closed` says what to do then");
}

#[tokio::test]
async fn a_newcomer_who_retries_finds_one_of_few_seats_among_many_servers() {
    let mut fleet = Fleet::new();
    let mut servers: Vec<_> = (0..50).map(|_| fleet.start_as(|builder| builder.max_active_users(100))).collect();
    pass_all(&fleet, 6, &mut servers).await;
    for player in 0..60 {
        let (place, player) = (player % 50, format!("player-{player}"));
        let mut tries = 1;
        while !servers[place].headcount.admit(&player).is_admitted() {
            pass_all(&fleet, 1, &mut servers).await;
            tries += 1;
            assert!(tries <= 3, "{player} has tried three times while there is room");
        }
        pass_all(&fleet, 2, &mut servers).await;
    }
}

#[tokio::test]
async fn a_day_that_the_stores_clock_was_ahead_stops_no_server() {
    let (mut fleet, stores) = Fleet::with_a_clock_for_the_store();
    let mut server = fleet.start();
    let second = |fleet: &Fleet, stores: &ManualClock| {
        fleet.clock.advance(SECOND);
        stores.advance(SECOND);
    };
    for _ in 0..6 {
        second(&fleet, &stores);
        server.round().await;
    }
    const DAY: Duration = Duration::from_secs(24 * 3600);
    stores.set_wall(stores.wall().plus(DAY));
    for _ in 0..3 {
        second(&fleet, &stores);
        server.round().await;
    }
    stores.set_wall(Timestamp::from_millis(stores.wall().as_millis() - DAY.as_millis() as u64));
    for _ in 0..3 {
        second(&fleet, &stores);
        server.round().await;
    }
    let status = server.headcount.status();
    assert_eq!(status.now.since(stores.wall()), Duration::ZERO, "fleet time is the store's again: {status:?}");
    assert_eq!(server.decide("alice"), Decision::Warming);
    for _ in 0..32 * 60 {
        second(&fleet, &stores);
        server.round().await;
    }
    assert_eq!(server.headcount.status().active_users.estimate, 0, "minutes turn, and she is forgotten");
}
