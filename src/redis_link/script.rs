//! Runs scripts on a server that may have forgotten them.

use redis::aio::ConnectionLike;
use redis::{AsyncCommands, ErrorKind, FromRedisValue, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};

/// A script of more than 16 KiB is read in several pieces, and others may be served between them.
const ATTEMPTS: usize = 4;

/// Runs a script. A server that does not know it gets the script and the call in one write: if the call waited for the
/// answer to the script, somebody could make the server forget it again in between.
///
/// # Errors
/// [`RedisError`] if the server refuses the script or the call, or does not answer.
pub(crate) async fn run_script<T: FromRedisValue>(
    script: &Script,
    call: &ScriptInvocation<'_>,
    connection: &mut (impl ConnectionLike + Send + Sync),
) -> Result<T, RedisError> {
    let mut answer = connection.invoke_script(call).await;
    for _ in 1..ATTEMPTS {
        if !answer.as_ref().is_err_and(is_unknown) {
            break;
        }
        answer = load_and_call(script, call, connection).await;
    }
    Ok(redis::from_redis_value(answer?)?)
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

async fn load_and_call(
    script: &Script,
    call: &ScriptInvocation<'_>,
    connection: &mut impl ConnectionLike,
) -> Result<Value, RedisError> {
    let mut both = redis::pipe();
    both.load_script(script).invoke_script(call).ignore_errors();
    let mut answer = Value::Nil;
    for said in both.query_async::<Vec<Value>>(connection).await? {
        answer = said.extract_error()?;
    }
    Ok(answer)
}
