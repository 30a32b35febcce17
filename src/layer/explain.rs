//! What the limits of requests would answer to a user, for an operator. No limit is charged.

use super::caller::Caller;
use super::judge::RequestLimits;
use super::limit::Limits;
use super::request::RequestInfo;
use crate::headcount::{ExplainedLimit, ExplainedRequest, Headcount};
use http::{HeaderMap, Method};
use std::sync::{Arc, OnceLock};

impl Headcount {
    /// Lets [`explain_request`](Self::explain_request) ask these limits.
    pub(crate) fn explain_limits(&self, limits: Arc<RequestLimits>) {
        let headcount = self.clone();
        self.peek_limits_with(Box::new(move |request, is_newcomer| {
            let (headcount, limits) = (headcount.clone(), Arc::clone(&limits));
            Box::pin(async move { limits.explain(&headcount, &request, is_newcomer).await })
        }));
    }
}

impl RequestLimits {
    async fn explain(
        &self,
        headcount: &Headcount,
        request: &ExplainedRequest,
        is_newcomer: bool,
    ) -> Vec<ExplainedLimit> {
        let headers = HeaderMap::new();
        let info = RequestInfo {
            method: &Method::GET,
            upgrades: false,
            path: request.path.as_deref(),
            readings: OnceLock::new(),
            headers: &headers,
            peer: request.client_ip,
            is_https: false,
            extensions: None,
            names_user: false,
        };
        let subject = request.user.as_deref().map(Into::into);
        let caller = Caller { token: request.token.as_deref(), subject, ..Caller::default() };
        let mut answers = Vec::new();
        let newcomers = Some(self.newcomers.limits()).filter(|_| is_newcomer);
        for limits in newcomers.into_iter().chain([&self.requests]) {
            limits.explain(headcount, &info, &caller, &mut answers).await;
        }
        answers
    }
}

impl Limits {
    async fn explain(
        &self,
        headcount: &Headcount,
        info: &RequestInfo<'_>,
        caller: &Caller<'_>,
        answers: &mut Vec<ExplainedLimit>,
    ) {
        for limit in self.all() {
            if let Some(answer) = limit.explain(headcount, info, caller).await {
                answers.push(answer);
            }
        }
    }
}
