//! Asks several servers the same question at the same time.

use super::address::Address;
use super::dial::{Connection, Dialer};
use crate::store_error::StoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// At most so many servers are asked.
const MOST: usize = 16;

/// How long the answers of the other servers are awaited after the first one, at most. It is a quarter of the time that
/// is left, if that is less: the caller has to connect afterwards.
const GRACE: Duration = Duration::from_millis(200);

/// Connects to the servers and asks each of them. Returns the answers that come within [`GRACE`] of the first one. One
/// answer may be old: a server that was cut off from the others says what was true before.
///
/// # Errors
/// The last failure, if nobody answers until the deadline.
pub(super) async fn ask_several<T, R>(
    servers: impl IntoIterator<Item = Address>,
    dialer: &Arc<Dialer>,
    deadline: Instant,
    question: impl Fn(Connection, Address) -> R + Clone + Send + Sync + 'static,
) -> Result<Vec<T>, StoreError>
where
    T: Send + 'static,
    R: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for server in servers.into_iter().take(MOST) {
        let (dialer, question) = (Arc::clone(dialer), question.clone());
        asked.spawn(async move {
            let name = server.to_string();
            let answer = async {
                let connection = dialer.dial(&server, deadline).await?;
                question(connection, server).await
            };
            answer.await.map_err(|error| error.at(name))
        });
    }
    let (mut answers, mut failure, mut until) = (Vec::new(), None, deadline);
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        match answer {
            Ok(Ok(answer)) => {
                answers.push(answer);
                let now = Instant::now();
                until = until.min(now + GRACE.min(deadline.saturating_duration_since(now) / 4));
            }
            Ok(Err(error)) => failure = Some(error),
            Err(_) => {}
        }
    }
    if answers.is_empty() {
        return Err(failure.unwrap_or_else(|| StoreError::timeout("none of the servers that were asked has answered")));
    }
    Ok(answers)
}
