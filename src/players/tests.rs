use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const RETRY: Answer = Answer::Rejected { retry_after: Duration::from_secs(30) };

/// Plays the crowd against a server that answers by `admits`, and returns every visit.
fn play(mut players: Players, until: Duration, mut admits: impl FnMut(Visit) -> Answer) -> (Vec<Visit>, Census) {
    let mut visits = Vec::new();
    while let Some(visit) = players.next(until) {
        visits.push(visit);
        players.answer(visit.player, admits(visit));
    }
    (visits, players.census())
}

fn crowd(habits: Habits, seed: u64) -> Players {
    Players::new(Arrivals::steady(60.0, 10 * MINUTE), habits, 4, seed)
}

fn visits_of_one(habits: Habits, minutes: u32) -> Vec<Visit> {
    let (visits, _) = play(crowd(habits, 3), minutes * MINUTE, |_| Answer::Admitted);
    let longest = (0..40).max_by_key(|&id| visits.iter().filter(|visit| visit.player == PlayerId(id)).count());
    visits.into_iter().filter(|visit| Some(visit.player.0) == longest).collect()
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    let run = |seed| {
        play(crowd(Habits::default(), seed), 20 * MINUTE, |visit| {
            if visit.player.0 % 3 == 0 { RETRY } else { Answer::Admitted }
        })
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn requests_come_in_the_order_of_their_times() {
    let (visits, _) = play(crowd(Habits::default(), 1), 20 * MINUTE, |_| Answer::Admitted);
    assert!(visits.is_sorted_by_key(|visit| visit.due));
}

#[test]
fn the_answers_to_one_player_do_not_change_the_others() {
    let others =
        |answer: Answer| {
            let (mut visits, _) = play(crowd(Habits::default(), 1), 10 * MINUTE, |visit| {
                if visit.player.0 == 5 { answer } else { Answer::Admitted }
            });
            visits.retain(|visit| visit.player.0 != 5);
            visits
        };
    assert_eq!(others(Answer::Admitted), others(RETRY));
}

#[test]
fn arrivals_follow_their_rate() {
    let ramp = Arrivals::through([(Duration::ZERO, 0.0), (10 * MINUTE, 1200.0), (20 * MINUTE, 1200.0)]);
    assert_eq!(ramp.per_minute(5 * MINUTE), 600.0);
    assert_eq!(ramp.per_minute(20 * MINUTE), 0.0);
    let (visits, census) =
        play(Players::new(ramp, Habits { retries: 0, ..Habits::default() }, 4, 1), 60 * MINUTE, |_| RETRY);
    assert_eq!(census.arrived, visits.len() as u64);
    let while_rising = visits.iter().filter(|visit| visit.due < 10 * MINUTE).count();
    assert!((5700..6300).contains(&while_rising), "{while_rising}");
    assert!((17_500..18_500).contains(&visits.len()), "{}", visits.len());
}

#[test]
fn a_rejected_newcomer_returns_after_retry_after_and_gives_up_in_the_end() {
    let habits = Habits { retries: 3, ..Habits::default() };
    let (visits, census) = play(crowd(habits, 1), 60 * MINUTE, |_| RETRY);
    let first: Vec<_> = visits.iter().filter(|visit| visit.player.0 == 0).map(|visit| visit.due).collect();
    assert_eq!(first.len(), 4);
    assert!(first.windows(2).all(|pair| pair[1] - pair[0] == 30 * SECOND));
    assert_eq!(census.gave_up, census.arrived);
    assert_eq!(census.entered, 0);
}

#[test]
fn a_player_who_is_rejected_in_mid_session_until_it_gives_up_counts_as_locked_out() {
    let mut met = std::collections::HashSet::new();
    let (_, census) =
        play(
            crowd(Habits::default(), 1),
            60 * MINUTE,
            |visit| {
                if met.insert(visit.player) { Answer::Admitted } else { RETRY }
            },
        );
    assert!(census.locked_out > 0);
    assert_eq!(census.locked_out + census.finished, census.arrived);
}

#[test]
fn players_think_play_and_stop() {
    let (visits, census) = play(crowd(Habits::default(), 1), 600 * MINUTE, |_| Answer::Admitted);
    assert_eq!(census.finished, census.arrived);
    // 20 minutes at a request every 10 s.
    let per_player = visits.len() as f64 / census.arrived as f64;
    assert!((100.0..140.0).contains(&per_player), "{per_player}");
}

#[test]
fn silences_have_the_configured_length() {
    let habits = Habits { silence_probability: 1.0, silence: 5 * MINUTE..=6 * MINUTE, ..Habits::default() };
    let visits = visits_of_one(habits, 60);
    assert!(visits.len() > 5);
    for pair in visits.windows(2) {
        assert!((5 * MINUTE..=6 * MINUTE).contains(&(pair[1].due - pair[0].due)));
    }
}

#[test]
fn players_change_servers_as_configured() {
    let servers = |roaming| -> Vec<_> {
        visits_of_one(Habits { roaming, ..Habits::default() }, 60).iter().map(|visit| visit.server).collect()
    };
    assert!(servers(Roaming::RoundRobin).windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4));
    assert!(servers(Roaming::Sticky).windows(2).all(|pair| pair[1] == pair[0]));
    let random = servers(Roaming::Random);
    assert!((0..4).all(|server| random.contains(&server)));
}

#[test]
fn a_slow_answer_does_not_thin_the_schedule() {
    let mut players = crowd(Habits::default(), 1);
    let first = players.next(10 * MINUTE).unwrap();
    // However late the answer is, the next request is scheduled from the time when the first was due.
    players.answer(first.player, RETRY);
    let second = std::iter::from_fn(|| players.next(10 * MINUTE)).find(|visit| visit.player == first.player);
    assert_eq!(second.unwrap().due, first.due + 30 * SECOND);
}

#[test]
fn a_lost_answer_is_followed_by_another_request() {
    let (visits, census) = play(crowd(Habits::default(), 1), 5 * MINUTE, |_| Answer::Lost);
    assert!(visits.len() as u64 > 2 * census.arrived);
    assert_eq!((census.entered, census.gave_up), (0, 0));
}

#[test]
fn a_player_who_returns_keeps_its_token() {
    let habits = Habits {
        session: MINUTE,
        silence_probability: 0.0,
        return_probability: 1.0,
        absence: 30 * MINUTE..=31 * MINUTE,
        ..Habits::default()
    };
    let visits = visits_of_one(habits, 120);
    let longest = visits.windows(2).map(|pair| pair[1].due - pair[0].due).max().unwrap();
    assert!(longest >= 30 * MINUTE, "{longest:?}");
}

#[test]
fn a_skewed_crowd_goes_to_the_first_server_most() {
    let habits = Habits { roaming: Roaming::Skewed, ..Habits::default() };
    let (visits, _) = play(crowd(habits, 5), 30 * MINUTE, |_| Answer::Admitted);
    let to = |server| visits.iter().filter(|visit| visit.server == server).count();
    assert!(to(0) > to(1) && to(1) > to(2) && to(2) > to(3) && to(3) > 0);
}
