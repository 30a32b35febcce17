//! Streams the status once a second, as server-sent events (HTML Living Standard §9.2).

use super::{Admin, problem};
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

const EVERY: Duration = Duration::from_secs(1);

/// The longest duration of a stream. After this time, the stream ends and its reader reconnects. Without this limit, a
/// service that has mounted the router could wait for an open stream when the service stops.
const AT_MOST: Duration = Duration::from_secs(20);

/// The largest number of streams at a time. Further clients can poll the status instead.
pub(super) const STREAMS: usize = 64;

pub(super) async fn stream(State(admin): State<Admin>) -> Response {
    let Ok(permit) = admin.streams.try_acquire_owned() else {
        let mut full =
            problem(StatusCode::SERVICE_UNAVAILABLE, "there are too many streams; poll /api/v1/status instead");
        full.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        return full;
    };
    let headcount = admin.headcount;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends = Instant::now() + AT_MOST;
    let watcher = (headcount.clone(), headcount.lifecycle().subscribe(), ticks, permit);
    let events = stream::unfold(watcher, move |(headcount, mut stop, mut ticks, permit)| async move {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return None,
            () = sleep_until(ends) => return None,
            _ = ticks.tick() => {}
        }
        if headcount.lifecycle().is_draining() {
            return None;
        }
        headcount.watch();
        let event = Event::default().event("status").json_data(headcount.status()).unwrap_or_default();
        Some((Ok::<_, Infallible>(event), (headcount, stop, ticks, permit)))
    });
    Sse::new(events).into_response()
}
