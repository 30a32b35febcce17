//! No decision allocates, and the layer does not allocate for a request that it admits.

use headcount::limit::{Ask, Memory, Policy, Rate, fixed_window, token_bucket};
use headcount::time::{ManualClock, Timestamp};
use headcount::{Decision, Headcount};
use http::{Request, Response};
use http_body_util::Empty;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tower::{Layer, Service};

fn decide_without_allocating(headcount: &Headcount, token: &str, wanted: Decision) {
    let mut decision = None;
    let allocations = allocation_counter::measure(|| decision = Some(headcount.admit(token).decision()));
    assert_eq!(decision, Some(wanted));
    assert_eq!(allocations.count_total, 0, "{wanted:?} has allocated");
}

#[test]
fn no_decision_allocates() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let builder = Headcount::builder().max_active_users(1).clock(Arc::clone(&clock)).refresh_queue(1);
    let (headcount, mut worker) = builder.build().unwrap();
    decide_without_allocating(&headcount, "alice", Decision::Newcomer);
    decide_without_allocating(&headcount, "alice", Decision::Seen);
    decide_without_allocating(&headcount, "bob", Decision::Rejected);
    decide_without_allocating(&headcount, " ", Decision::Rejected);
    clock.advance(Duration::from_secs(60));
    worker.tick();
    // Refreshed through the queue, and in place when the queue is full.
    for _ in 0..3 {
        decide_without_allocating(&headcount, "alice", Decision::Seen);
    }
    assert_eq!(headcount.status().ring.queue_full, 1);
}

#[test]
fn a_limiter_in_memory_allocates_nothing_for_a_known_key() {
    let minute = Duration::from_secs(60);
    for policy in [Policy::from(token_bucket(Rate::per_minute(1), 1)), fixed_window(1, minute).into()] {
        let limiter = Memory::builder(policy).max_keys(4).build().unwrap();
        for key in ["alice", "bob", "carol", "dave", "erin"] {
            assert!(limiter.ask(key, Ask::ONE).unwrap().is_allowed());
        }
        let mut allowed = true;
        let allocations = allocation_counter::measure(|| allowed = limiter.ask("erin", Ask::ONE).unwrap().is_allowed());
        assert_eq!((allowed, allocations.count_total), (false, 0));
    }
}

/// Answers at once, with a response that was made before.
#[derive(Clone, Default)]
struct Answers(Option<Response<Empty<bytes::Bytes>>>);

impl<B> Service<Request<B>> for Answers {
    type Response = Response<Empty<bytes::Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(self.0.take().expect("it is asked once")))
    }
}

#[test]
fn the_layer_allocates_nothing_for_an_active_user() {
    let (headcount, _worker) = Headcount::builder().max_active_users(10).build().unwrap();
    let layer = headcount.layer();
    let mut context = Context::from_waker(Waker::noop());
    for (what, token) in [("a newcomer", "alice"), ("seen", "alice"), ("a missing token", "")] {
        let mut service = layer.layer(Answers(Some(Response::new(Empty::new()))));
        let request = Request::get("/play").header("authorization", format!("Bearer {token}")).body(()).unwrap();
        let mut answer = None;
        let allocations = allocation_counter::measure(|| {
            let future = pin!(service.call(request));
            answer = Some(future.poll(&mut context));
        });
        let Some(Poll::Ready(Ok(response))) = answer else { panic!("{what}: no answer at once") };
        assert_eq!(response.status(), 200);
        assert_eq!(allocations.count_total, 0, "{what} has allocated");
    }
}
