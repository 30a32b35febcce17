//! Identifies the caller of a request with a signed token. Only a few signatures are verified at a time. A client that
//! has been refused too often gets no further signature verified.

use super::caller::Caller;
#[cfg(feature = "jwt")]
use super::limited::Limited;
use super::refusals::Refusals;
use super::request::RequestInfo;
use crate::headcount::Headcount;
#[cfg(feature = "jwt")]
use crate::jwt::Late;
use crate::token_source::InvalidToken;

/// Why the caller is unknown.
#[derive(Debug)]
pub(crate) enum NoCaller {
    Invalid(InvalidToken),
    /// The token was not checked: the client has used up its limit of refusals, or too many tokens wait for
    /// verification.
    #[cfg(feature = "jwt")]
    Limited(Limited),
}

impl Headcount {
    /// Returns the caller. A signature is verified on another thread, when its turn has come.
    ///
    /// # Errors
    /// [`NoCaller`].
    // Without the feature, the function keeps its interface.
    #[cfg_attr(not(feature = "jwt"), allow(clippy::unused_async, unused_variables))]
    pub(crate) async fn caller_in_turn<'r>(
        &self,
        info: &RequestInfo<'r>,
        refusals: &Refusals,
    ) -> Result<Caller<'r>, NoCaller> {
        if let Some(known) = self.caller_at_once(info.headers) {
            return known.map_err(NoCaller::Invalid);
        }
        #[cfg(feature = "jwt")]
        if let (Some((verifier, _)), Ok(Some(token))) = (&self.settings().jwt, self.shown_token(info.headers)) {
            let charge = refusals.attempt(self, info, token).map(super::refusals::Attempt::charge).transpose();
            let charge = charge
                .map_err(|limited| {
                    NoCaller::Limited(limited.wait_at_least(self.retry_after_for_limited(&self.user(token.as_bytes()))))
                })?
                .flatten();
            let refused = move || charge.into_iter().for_each(super::refusals::Charge::keep);
            let (now, tick) = (self.clock().wall(), self.clock().monotonic());
            let user = match verifier.in_turn(token, now, tick, refused).await {
                Ok(user) => Ok(user),
                Err(Late::Refused(why)) => Err(why),
                Err(Late::Busy) => return Err(NoCaller::Limited(Limited::too_many_waiting())),
            };
            return self.caller_after_verification(token, user).map_err(NoCaller::Invalid);
        }
        // Not reached: without a signature to verify, the caller is known at once.
        Ok(Caller::default())
    }
}
