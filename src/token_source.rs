//! The places where a request carries its token.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest accepted token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4096;

/// One place where a request may carry its token.
///
/// ```
/// use headcount::TokenSource;
/// assert_eq!("cookie:session".parse(), Ok(TokenSource::Cookie("session".into())));
/// assert!("query:token".parse::<TokenSource>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenSource {
    /// The header `Authorization: Bearer …`.
    Bearer,
    /// The cookie with this name.
    Cookie(String),
    /// The header with this name.
    Header(String),
}

impl TokenSource {
    /// Returns the default sources: only `Authorization: Bearer …`. List only sources by which the backend
    /// authenticates: with any other source, a client can be admitted with another user's token.
    pub fn defaults() -> Vec<Self> {
        vec![Self::Bearer]
    }
}

/// What to do with a request whose sources hold different tokens.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// use axum::http::{HeaderMap, HeaderValue, header::{AUTHORIZATION, COOKIE}};
/// use headcount::{InvalidToken, OnConflict, TokenSource};
/// let mut headers = HeaderMap::new();
/// headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer borrowed"));
/// headers.append(COOKIE, HeaderValue::from_static("sid=alice"));
/// let sources = [TokenSource::Bearer, TokenSource::Cookie("sid".into())];
/// let find = |on_conflict| TokenSource::find(&sources, on_conflict, &headers);
/// assert_eq!(find(OnConflict::Refuse), Err(InvalidToken::Ambiguous));
/// assert_eq!(find(OnConflict::First), Ok(Some("borrowed")));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// Refuses the request with 400: one of the tokens may belong to another user, who is active.
    #[default]
    Refuse,
    /// Uses the first source that holds a token, and ignores the others.
    First,
}

/// An error for a text that does not name a token source.
///
/// ```
/// use headcount::TokenSource;
/// let error = "query:token".parse::<TokenSource>().unwrap_err();
/// let words = "\"query:token\" is not a token source; use \"bearer\", \"cookie:NAME\" or \"header:NAME\"";
/// assert_eq!(error.to_string(), words);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a token source; use \"bearer\", \"cookie:NAME\" or \"header:NAME\"")]
pub struct TokenSourceError {
    found: String,
}

impl FromStr for TokenSource {
    type Err = TokenSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = |name: &str| is_http_token(name).then(|| name.to_owned());
        let source = match text.split_once(':') {
            None if text.eq_ignore_ascii_case("bearer") => Some(Self::Bearer),
            Some(("cookie", cookie)) => name(cookie).map(Self::Cookie),
            Some(("header", header)) => name(header).map(Self::Header),
            _ => None,
        };
        source.ok_or_else(|| TokenSourceError { found: text.to_owned() })
    }
}

impl TryFrom<String> for TokenSource {
    type Error = TokenSourceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TokenSource> for String {
    fn from(source: TokenSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// Returns whether a name is a `token` in the grammar of RFC 9110 §5.6.2, as names of headers and cookies must be.
pub(crate) fn is_http_token(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(legal)
}

/// Why the token of a request is not usable.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// use axum::http::{HeaderMap, HeaderValue, header::COOKIE};
/// use headcount::{InvalidToken, OnConflict, TokenSource};
/// let sources = [TokenSource::Cookie("sid".into())];
/// let mut headers = HeaderMap::new();
/// let find = |headers: &_| {
///     TokenSource::find(&sources, OnConflict::Refuse, headers).map(|token| token.map(str::to_owned))
/// };
/// headers.append(COOKIE, HeaderValue::from_static("sid=alice"));
/// assert_eq!(find(&headers), Ok(Some("alice".to_owned())));
/// headers.append(COOKIE, HeaderValue::from_static("sid=bob"));
/// assert_eq!(find(&headers), Err(InvalidToken::Ambiguous));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// The token is longer than [`MAX_TOKEN_BYTES`].
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// The token is not UTF-8.
    #[error("the token is not valid UTF-8")]
    NotText,
    /// The sources, or one source, hold different tokens.
    #[error("the request carries several different tokens")]
    Ambiguous,
    /// `Authorization` holds neither a `Bearer` token nor credentials of another registered scheme. A backend may still
    /// take the value for a token.
    #[error("the header Authorization has no known scheme, such as `Bearer`")]
    UnknownScheme,
    /// The cookies have more than 500 `=`. To some backend, each `=` could be that of a cookie, so this server would
    /// have to look at each, and a client could keep it busy with them.
    #[error("the header Cookie has more than 500 `=`")]
    TooManyCookies,
    /// The cookie is split into several, with a number behind the name. ASP.NET Core, Auth.js, Supabase and
    /// oauth2-proxy do so with large sessions. The first part may be the same for all users.
    #[error("the cookie with the token is split into several cookies; such tokens are not supported")]
    Split,
    /// The token cannot be verified.
    #[error("{0}")]
    Unverifiable(Unverifiable),
}

/// Why a token cannot be verified.
///
/// By default (`token.jwt.unverified = "reject"`) such a request is answered 400 with the text of this error.
/// [`NoKeysYet`](Self::NoKeysYet) is an exception: the request is admitted, and no user is counted. It is rejected if
/// `fleet.on_outage` is `"closed"`, or under the override `throttling`.
///
/// ```
/// use axum::http::{Request, StatusCode};
/// use headcount::{Headcount, Unverifiable};
/// use tower::{Layer, ServiceExt, service_fn};
/// # #[cfg(feature = "jwt")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use axum::{body::Body, http::Response};
/// # let directory = tempfile::tempdir()?;
/// # let secret = directory.path().join("jwt.secret");
/// # std::fs::write(&secret, [b's'; 32])?;
/// # let inner = service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(Body::from("inside"))) });
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).jwt_keys([secret]).build()?;
/// let request = Request::get("/").header("authorization", "Bearer alice").body(())?;
/// let refused = headcount.layer().layer(inner).oneshot(request).await?;
/// assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
/// let body = axum::body::to_bytes(Body::new(refused.into_body()), 10_000).await?;
/// assert!(str::from_utf8(&body)?.contains(&Unverifiable::NoJwt.to_string()));
/// # Ok(()) }
/// # #[cfg(not(feature = "jwt"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unverifiable {
    /// The token is not three parts of base64url with JSON in the first two, or uses an unsupported extension or
    /// algorithm.
    #[error("the token is not a supported JSON Web Token")]
    NoJwt,
    /// No known key fits the token's algorithm and key name (`kid`).
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    /// No known key fits the token, and the keys could not be fetched yet.
    #[error("the keys that verify tokens could not be fetched yet")]
    NoKeysYet,
    /// No known key has signed the token.
    #[error("the token's signature is invalid")]
    Forged,
    /// The token's `exp` is in the past.
    #[error("the token has expired")]
    Expired,
    /// The token has no `exp`, and `token.jwt.require_exp` is `true` (the default).
    #[error("the token has no expiry (exp)")]
    NoEnd,
    /// The token's `nbf` is in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// The token's `iss` or `aud` is not the expected one.
    #[error("the token was issued for another service")]
    NotForUs,
    /// The token's user claim does not name a user.
    #[error("the token does not name a user")]
    NoUser,
}

#[cfg(feature = "tower")]
pub(crate) use extract::{cookie_headers, cookies};

#[cfg(feature = "tower")]
mod extract {
    use super::{InvalidToken, MAX_TOKEN_BYTES, OnConflict, TokenSource};
    use http::HeaderMap;
    use http::header::{AUTHORIZATION, AsHeaderName, COOKIE};
    use std::borrow::Cow;

    impl TokenSource {
        /// Returns the token of a request, or `None` if no source holds one. Blank tokens are ignored.
        ///
        /// # Errors
        /// [`InvalidToken`] says why the token cannot be used. Different tokens in several sources are an error only
        /// with [`OnConflict::Refuse`], different tokens in one source always.
        pub fn find<'h>(
            sources: &[Self],
            on_conflict: OnConflict,
            headers: &'h HeaderMap,
        ) -> Result<Option<&'h str>, InvalidToken> {
            let mut found = None;
            for source in sources {
                let Some(token) = source.token(headers)? else { continue };
                if on_conflict == OnConflict::First {
                    return Ok(Some(token));
                }
                if found.replace(token).is_some_and(|before| before != token) {
                    return Err(InvalidToken::Ambiguous);
                }
            }
            Ok(found)
        }

        fn token<'h>(&self, headers: &'h HeaderMap) -> Result<Option<&'h str>, InvalidToken> {
            match self {
                Self::Bearer => bearer_token(headers),
                Self::Cookie(name) => {
                    let is_split = cookie_headers(headers)?.any(|value| has_part(value, name));
                    let token = only(cookie_headers(headers)?.flat_map(|value| cookies(value, name)))?;
                    if is_split || token.is_some_and(counts_parts) { Err(InvalidToken::Split) } else { Ok(token) }
                }
                Self::Header(name) => only(values(headers, name.as_str())),
            }
        }
    }

    /// The registered schemes of `Authorization` (IANA, "HTTP Authentication Schemes") without `Bearer`, and those of
    /// Windows and of Amazon.
    const OTHER_SCHEMES: [&str; 15] = [
        "Basic",
        "Digest",
        "Negotiate",
        "NTLM",
        "AWS4-HMAC-SHA256",
        "Concealed",
        "DPoP",
        "GNAP",
        "HOBA",
        "Mutual",
        "OAuth",
        "PrivateToken",
        "SCRAM-SHA-1",
        "SCRAM-SHA-256",
        "vapid",
    ];

    /// The largest number of digits in the number of a cookie's part. A cookie is split into fewer than a hundred
    /// parts, so a longer number belongs to the name of another cookie.
    const MOST_DIGITS: usize = 2;

    /// The most `=` in the headers `Cookie` of a request.
    const MOST_EQUALS: usize = 500;

    /// Returns the values of all headers `Cookie`.
    ///
    /// # Errors
    /// [`InvalidToken::TooManyCookies`].
    pub(crate) fn cookie_headers(headers: &HeaderMap) -> Result<impl Iterator<Item = &[u8]>, InvalidToken> {
        let equals = values(headers, COOKIE).flatten().filter(|byte| **byte == b'=').count();
        if equals > MOST_EQUALS { Err(InvalidToken::TooManyCookies) } else { Ok(values(headers, COOKIE)) }
    }

    fn values<'h, N: AsHeaderName>(headers: &'h HeaderMap, name: N) -> impl Iterator<Item = &'h [u8]> + use<'h, N> {
        headers.get_all(name).into_iter().map(|value| value.as_bytes())
    }

    /// Returns the token of `Authorization`, which must be a single value that begins with `Bearer`.
    ///
    /// Backends differ in how they read any other value that contains the word. Some take the second word, whatever the
    /// first is; some take what follows the last `Bearer`; some take the first of two headers. So the backend could act
    /// on another token than the one that this server admits.
    fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, InvalidToken> {
        let mut lines = values(headers, AUTHORIZATION).map(<[u8]>::trim_ascii);
        let Some(first) = lines.next() else { return Ok(None) };
        if bearer(first).is_some() && lines.all(|line| line == first) {
            return only(bearers(first));
        }
        let lines = || values(headers, AUTHORIZATION).map(<[u8]>::trim_ascii);
        let says_bearer = |line: &[u8]| line.windows(6).any(|word| word.eq_ignore_ascii_case(b"bearer"));
        if lines().any(says_bearer) {
            Err(InvalidToken::Ambiguous)
        } else if lines().all(has_other_scheme) {
            Ok(None)
        } else {
            Err(InvalidToken::UnknownScheme)
        }
    }

    /// Returns whether a value of `Authorization` is empty, or begins with a registered scheme other than `Bearer`. Any
    /// other value could be a token: some backends accept a token with any scheme, or without one.
    fn has_other_scheme(value: &[u8]) -> bool {
        let scheme = value.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        scheme.is_empty() || OTHER_SCHEMES.iter().any(|other| scheme.eq_ignore_ascii_case(other.as_bytes()))
    }

    /// Returns the tokens that a backend could read from a `Bearer` value. Some libraries split the value at commas, or
    /// remove a no-break space, so a `Bearer` after one of these counts, too.
    fn bearers(value: &[u8]) -> impl Iterator<Item = &[u8]> {
        let parts = value.split(|&byte| byte == b',' || !byte.is_ascii());
        bearer(value).into_iter().chain(parts.skip(1).filter_map(bearer))
    }

    /// Returns the token of a `Bearer` value. The name of the scheme is case-insensitive (RFC 9110 §11.1).
    fn bearer(value: &[u8]) -> Option<&[u8]> {
        let value = value.trim_ascii();
        let (scheme, token) = value.split_at_checked(6)?;
        let apart = token.first().is_none_or(|byte| byte.is_ascii_whitespace() || !byte.is_ascii());
        (scheme.eq_ignore_ascii_case(b"bearer") && apart).then_some(token)
    }

    /// Returns the values that a backend could read from a `Cookie` header as cookies with this name.
    ///
    /// Cookies are separated by semicolons. Some libraries also separate them at commas (proxies join two headers with
    /// a comma), at blanks, or at other white space such as a no-break space. Some decode names, or compare them
    /// without regard to case. If a backend could read another cookie than this server does, any user could be admitted
    /// with the token of an active user. So every library's reading counts, and readings that differ make the token
    /// ambiguous.
    pub(crate) fn cookies<'h>(value: &'h [u8], name: &str) -> impl Iterator<Item = &'h [u8]> {
        let named = move |pair: &'h [u8]| {
            let equals = pair.iter().position(|&byte| byte == b'=')?;
            is_read_as(&pair[..equals], name).then(|| &pair[equals + 1..])
        };
        value.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).flat_map(move |pair| {
            let whole = named(pair);
            let parts = pair.split(ends_cookie).skip(1).filter_map(named);
            whole.into_iter().chain(parts).chain(cookies_within(pair, name, whole.is_some()))
        })
    }

    /// Whether some library takes this byte for the end of a cookie.
    fn ends_cookie(byte: &u8) -> bool {
        *byte == b',' || byte.is_ascii_whitespace() || !byte.is_ascii()
    }

    /// Returns the values that parsers such as Python's SimpleCookie could read within a pair. To them, each `=` may
    /// stand between the name and the value of a cookie, with blanks around it. The name begins after a comma, white
    /// space, a quote, a backslash, a bracket, a control character or a byte outside ASCII, or after a `=` that begins
    /// the pair. `skip_first` skips the first `=`, by which the caller has already read the pair.
    fn cookies_within<'h>(pair: &'h [u8], name: &str, skip_first: bool) -> impl Iterator<Item = &'h [u8]> {
        // A percent-encoded name takes three bytes for one. Names of unbounded length would take quadratic time.
        let longest = 3 * name.len() + 1;
        let begins_name = |byte: &u8| ends_cookie(byte) || b"\"\\[]".contains(byte) || byte.is_ascii_control();
        let equals = pair.iter().enumerate().filter(|(_, byte)| **byte == b'=').map(|(at, _)| at);
        equals.skip(usize::from(skip_first)).filter_map(move |at| {
            let before = pair[..at].trim_ascii_end();
            let written = before[before.len().saturating_sub(longest)..].rsplit(begins_name).next().unwrap_or_default();
            let begins_pair = written.len() == before.len();
            let written = written.strip_prefix(b"=").filter(|_| begins_pair).unwrap_or(written);
            let value = || pair[at + 1..].trim_ascii_start().split(ends_cookie).next().unwrap_or_default();
            is_read_as(written, name).then(value)
        })
    }

    /// Returns whether a backend could read `written` as the name of a cookie. PHP decodes `%73`, cuts a name at NUL,
    /// replaces `.`, `[` and blanks by `_`, and takes `name[]` for an element of `name`. ASP.NET Core ignores the case.
    /// Old parsers remove quotes and a `$`.
    fn is_read_as(written: &[u8], name: &str) -> bool {
        let letter = |byte: u8| if b".[ +".contains(&byte) { b'_' } else { byte.to_ascii_lowercase() };
        let is_name = |read: &[u8]| read.iter().copied().map(letter).eq(name.bytes().map(letter));
        let written = written.trim_ascii();
        if written.len() < name.len() {
            return false;
        }
        if is_name(written) || written.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
            return is_name(written);
        }
        let decoded = Cow::from(percent_encoding::percent_decode(written));
        let decoded = decoded.split(|&byte| byte == 0).next().unwrap_or_default();
        let is_edge = |byte: &u8| !byte.is_ascii_graphic() || b"+\"'$".contains(byte);
        let Some(first) = decoded.iter().position(|byte| !is_edge(byte)) else { return false };
        let end = decoded.iter().rposition(|byte| !is_edge(byte)).map_or(first, |last| last + 1);
        let whole = &decoded[first..end];
        let array = whole.split(|&byte| byte == b'[').next().unwrap_or_default();
        is_name(whole) || is_name(array)
    }

    /// Returns whether a `Cookie` header has a cookie that a backend could read as a part of this one: its name is
    /// followed by a separator and a number.
    fn has_part(value: &[u8], name: &str) -> bool {
        let is_part = |read: &[u8]| {
            let Some((start, rest)) = read.split_at_checked(name.len()) else { return false };
            let separators = rest.iter().take_while(|byte| b"._-cC".contains(byte)).count();
            let number = &rest[separators..];
            start.eq_ignore_ascii_case(name.as_bytes())
                && (1..=2).contains(&separators)
                && (1..=MOST_DIGITS).contains(&number.len())
                && number.iter().all(u8::is_ascii_digit)
        };
        value.split(|byte| *byte == b';' || ends_cookie(byte)).any(|pair| {
            let written = pair.split(|&byte| byte == b'=').next().unwrap_or_default().trim_ascii();
            let longest = 3 * (name.len() + 24);
            if written.len() <= name.len() || written.len() > longest {
                return false;
            }
            if written.contains(&b'%') {
                is_part(&Cow::from(percent_encoding::percent_decode(written)))
            } else {
                is_part(written)
            }
        })
    }

    /// Returns whether the value of a cookie says into how many cookies it is split, such as `chunks-3` of ASP.NET
    /// Core.
    fn counts_parts(token: &str) -> bool {
        let number = token.strip_prefix("chunks-").or(token.strip_prefix("chunks:"));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Returns the only token among the values; the same value may occur twice.
    fn only<'h>(values: impl Iterator<Item = &'h [u8]>) -> Result<Option<&'h str>, InvalidToken> {
        let mut found = None;
        for value in values.map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()) {
            if value.len() > MAX_TOKEN_BYTES {
                return Err(InvalidToken::TooLong);
            }
            let token = std::str::from_utf8(value).map_err(|_| InvalidToken::NotText)?;
            if found.replace(token).is_some_and(|before| before != token) {
                return Err(InvalidToken::Ambiguous);
            }
        }
        Ok(found)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use http::HeaderValue;

        fn find(headers: &[(&'static str, &[u8])]) -> Result<Option<String>, InvalidToken> {
            find_or(OnConflict::Refuse, headers)
        }

        fn find_or(on_conflict: OnConflict, headers: &[(&'static str, &[u8])]) -> Result<Option<String>, InvalidToken> {
            let sources: Vec<TokenSource> =
                ["bearer", "cookie:session", "header:X-Access-Token"].map(|source| source.parse().unwrap()).into();
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_bytes(value).unwrap());
            }
            TokenSource::find(&sources, on_conflict, &map).map(|token| token.map(str::to_owned))
        }

        fn found(headers: &[(&'static str, &[u8])]) -> String {
            find(headers).unwrap().expect("a token")
        }

        #[test]
        fn each_source_is_found_under_its_name() {
            assert_eq!(found(&[("authorization", b"Bearer alice")]), "alice");
            assert_eq!(found(&[("authorization", b"bEARER   alice  ")]), "alice");
            assert_eq!(found(&[("cookie", b"theme=dark; session=alice; x=y")]), "alice");
            assert_eq!(found(&[("x-access-token", "çelik".as_bytes())]), "çelik");
        }

        #[test]
        fn sources_that_disagree_are_refused_unless_the_first_counts() {
            let differing = [("cookie", b"session=bob".as_slice()), ("authorization", b"Bearer alice".as_slice())];
            assert_eq!(find(&differing), Err(InvalidToken::Ambiguous));
            assert_eq!(find_or(OnConflict::First, &differing), Ok(Some("alice".into())));
            assert_eq!(found(&[("cookie", b"session=bob"), ("x-access-token", b"bob")]), "bob");
            assert_eq!(found(&[("cookie", b"session=bob"), ("authorization", b"Basic YTpi")]), "bob");
            assert_eq!(found(&[("authorization", b"Bearer "), ("x-access-token", b"carol")]), "carol");
        }

        #[test]
        fn nothing_and_blanks_are_no_token() {
            let nothing: [&[(&'static str, &[u8])]; 6] = [
                &[],
                &[("authorization", b"Bearer")],
                &[("authorization", b"Bearer   \t ")],
                &[("authorization", b"Basic eA==")],
                &[("cookie", b"session=; sessions=x; =y; session")],
                &[("x-access-token", b"   ")],
            ];
            for headers in nothing {
                assert_eq!(find(headers), Ok(None), "{headers:?}");
            }
        }

        #[test]
        fn a_repeated_source_must_agree_with_itself() {
            assert_eq!(found(&[("x-access-token", b"a"), ("x-access-token", b"a")]), "a");
            let differing = [("x-access-token", b"a".as_slice()), ("x-access-token", b"b".as_slice())];
            assert_eq!(find(&differing), Err(InvalidToken::Ambiguous));
            assert_eq!(find(&[("cookie", b"session=a; session=b")]), Err(InvalidToken::Ambiguous));
            assert_eq!(find(&[("cookie", b"x=1,session=b; session=a")]), Err(InvalidToken::Ambiguous));
            assert_eq!(find(&[("cookie", b"session=a, session=b")]), Err(InvalidToken::Ambiguous));
            assert_eq!(found(&[("cookie", b"x=1, session=a,y=2")]), "a", "as proxies join two headers");
            assert_eq!(found(&[("cookie", b"session=user=5,at=9")]), "user=5,at=9");
        }

        /// Each of these was read as bob's cookie by a library: Django and Starlette remove a no-break space (NBSP) and
        /// NEL, Python's SimpleCookie and webob split at blanks and allow them around `=`, PHP decodes names, ASP.NET
        /// Core ignores their case, Werkzeug 2.2 removed a leading `=`.
        #[test]
        fn a_cookie_that_another_parser_would_read_counts() {
            for disguised in [
                "\u{a0}session=bob",
                "\u{85}session=bob",
                "x=1 session=bob",
                "x=1\tsession=bob",
                "x \u{a0}session=bob",
                "%73ession=bob",
                "%20session=bob",
                "session%00x=bob",
                "SESSION=bob",
                "session\u{a0}=bob",
                "+session=bob",
                "x=\"1\" session=bob",
                "x=1, Session=bob",
                "\u{2003}session=bob",
                "\"session\"=bob",
                "$session=bob",
                "session[]=bob",
                "x=1 session =bob",
                "x=1 session= bob",
                "x=1 session\t=\tbob",
                "x=1, session =bob",
                "x session =bob",
                "x=\"a\"session=bob",
                "x=1]session=bob",
                "[session= bob",
                "=session=bob",
                "x=1\\session=bob",
            ] {
                for header in [format!("session=alice; {disguised}"), format!("{disguised}; session=alice")] {
                    assert_eq!(find(&[("cookie", header.as_bytes())]), Err(InvalidToken::Ambiguous), "{header:?}");
                }
                assert_eq!(found(&[("cookie", disguised.as_bytes())]), "bob", "{disguised:?}");
            }
            let latin = b"session=alice; \xa0session=bob";
            assert_eq!(find(&[("cookie", latin)]), Err(InvalidToken::Ambiguous), "NBSP in ISO 8859-1");
            for other in [
                "sessions=bob",
                "my-session=bob",
                "session2=bob",
                "next=/?session=bob&x=1",
                "x=session",
                "=session",
                "x=session=y",
            ] {
                assert_eq!(found(&[("cookie", format!("session=alice; {other}").as_bytes())]), "alice", "{other:?}");
            }
            assert_eq!(found(&[("cookie", b"theme=dark mode; session=alice; x=a b, c=d")]), "alice");
            assert_eq!(found(&[("cookie", b"x=1; session=a b")]), "a b");
        }

        #[test]
        fn a_cookie_whose_name_php_replaces_letters_of_counts() {
            let read = |written: &str| is_read_as(written.as_bytes(), "session_id");
            assert!(
                read("session_id")
                    && read("session.id")
                    && read("session%20id")
                    && read("session[id")
                    && read("session+id")
            );
            assert!(!read("session-id") && !read("sessionid") && !read("session_id_") && !read(""));
        }

        #[test]
        fn a_cookie_in_parts_is_refused() {
            for parts in [
                "session=chunks-2; sessionC1=bob; sessionC2=x",
                "session=chunks:1",
                "session.0=bob; session.1=x",
                "session=same; session.0=bob",
                "x=1; SESSION_0=bob",
                "x=1, session__0=bob",
                "session-0=bob",
                "session%2E0=bob",
                "session.0",
            ] {
                assert_eq!(find(&[("cookie", parts.as_bytes())]), Err(InvalidToken::Split), "{parts:?}");
            }
            for whole in [
                "session=alice; session2=x",
                "session=alice; session_id=x",
                "session=alice; session.x0=y",
                "session=alice; session_171245=x",
            ] {
                assert_eq!(found(&[("cookie", whole.as_bytes())]), "alice", "{whole:?}");
            }
            assert_eq!(found(&[("cookie", b"session=chunks-x")]), "chunks-x");
        }

        #[test]
        fn credentials_of_another_scheme_are_no_token_and_those_of_none_are_refused() {
            for other in ["Basic YTpi", "negotiate abc", "Digest username=\"a\"", "DPoP x", "", "  "] {
                assert_eq!(find(&[("authorization", other.as_bytes())]), Ok(None), "{other:?}");
            }
            for unknown in ["bob", "Token bob", "eyJhbGciOiJIUzI1NiJ9.e30.x", "Basicbob x", "Basic, x"] {
                let lines = [("authorization", unknown.as_bytes()), ("authorization", b"Basic YTpi".as_slice())];
                assert_eq!(find(&lines[..1]), Err(InvalidToken::UnknownScheme), "{unknown:?}");
                assert_eq!(find(&lines), Err(InvalidToken::UnknownScheme), "{unknown:?}");
            }
        }

        /// flask-jwt-extended splits the header at commas. Python's `split` splits at no-break spaces, too. Many a
        /// backend takes the second word, whatever the first is; Laravel takes what follows the last `Bearer`.
        #[test]
        fn a_value_that_another_parser_would_read_otherwise_is_ambiguous() {
            for disguised in [
                "Basic bob, Bearer alice",
                "Basic bob , Bearer alice",
                "Basic x, Bearer alice, X Bearer bob",
                ", Bearer alice",
                "\u{a0}Bearer alice",
                "Bearer bob, bearer alice",
                "Bearerx bob , Bearer alice",
                "Bearerx bob",
                "xBearer bob, Bearer alice",
                "\"Bearer bob\" , Bearer alice",
                "Bearer:bob , bearer alice",
                "Basic bob \u{a0}Bearer alice",
                "Basic bob BEARER alice",
            ] {
                assert_eq!(
                    find(&[("authorization", disguised.as_bytes())]),
                    Err(InvalidToken::Ambiguous),
                    "{disguised:?}"
                );
            }
            for second in ["Basic bob", "Bearer bob", "", "bearer alice"] {
                let lines = [("authorization", second.as_bytes()), ("authorization", b"Bearer alice".as_slice())];
                assert_eq!(find(&lines), Err(InvalidToken::Ambiguous), "{second:?}");
                let turned = [lines[1], lines[0]];
                assert_eq!(find(&turned), Err(InvalidToken::Ambiguous), "{second:?}");
            }
            assert_eq!(found(&[("authorization", b"Bearer alice"), ("authorization", b"Bearer alice ")]), "alice");
            assert_eq!(found(&[("authorization", "Bearer\u{a0}bob".as_bytes())]), "\u{a0}bob", "the blank is kept");
            assert_eq!(find(&[("authorization", b"Bearer\xa0bob")]), Err(InvalidToken::NotText));
            assert_eq!(found(&[("authorization", b"Bearer a,b")]), "a,b");
        }

        /// Each `=` could end a name, and each name could be long.
        #[test]
        fn a_hostile_cookie_takes_linear_time() {
            let hostile = b"a=".repeat(1 << 19);
            assert_eq!(cookies(&hostile, "session").count(), 0);
        }

        #[test]
        fn more_cookies_than_people_have_are_refused() {
            let cookies = |equals: usize| [b"session=alice; ".as_slice(), &b"=".repeat(equals - 1)].concat();
            assert_eq!(found(&[("cookie", &cookies(500))]), "alice");
            assert_eq!(find(&[("cookie", &cookies(501))]), Err(InvalidToken::TooManyCookies));
            let lines = [("cookie", b"a=b".as_slice()), ("cookie", &cookies(500))];
            assert_eq!(find(&lines), Err(InvalidToken::TooManyCookies), "in all lines together");
        }

        #[test]
        fn what_is_too_long_or_no_text_is_refused() {
            let longest = vec![b'x'; MAX_TOKEN_BYTES];
            assert_eq!(found(&[("x-access-token", &longest)]).len(), MAX_TOKEN_BYTES);
            let longer = vec![b'x'; MAX_TOKEN_BYTES + 1];
            assert_eq!(find(&[("x-access-token", &longer)]), Err(InvalidToken::TooLong));
            assert_eq!(find(&[("x-access-token", b"\xff\xfe")]), Err(InvalidToken::NotText));
        }
    }
}
