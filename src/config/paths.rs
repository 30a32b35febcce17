//! Path rules: an exact path, or a prefix that ends in `/*`.

use super::page_data::PageData;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// A list of path rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathPatterns(Vec<Pattern>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// The path. A prefix ends with its slash; the star is removed.
    path: String,
    /// The path as [`read_leniently`] returns it.
    lenient: String,
    /// `lenient` without its format. `None` if it has no format, or if the rule is a prefix.
    script: Option<String>,
    is_prefix: bool,
}

impl PathPatterns {
    /// Parses rules. The error is the first rule that is invalid, or that no path can match.
    pub(crate) fn parse(patterns: &[String]) -> Result<Self, String> {
        patterns.iter().map(|pattern| Pattern::parse(pattern).ok_or_else(|| pattern.clone())).collect()
    }

    /// Returns whether a rule covers the path literally.
    pub(crate) fn cover(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.covers(path))
    }

    /// Returns whether an exact rule is this path.
    pub(crate) fn are_exactly(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| !pattern.is_prefix && pattern.covers(path))
    }

    /// Returns whether a rule covers a path that [`read_leniently`] returned.
    pub(crate) fn covers_lenient(&self, lenient: &str) -> bool {
        self.0.iter().any(|pattern| pattern.covers_leniently(lenient))
    }

    /// Returns the path of the exact rule that covers a reading of `path`. If exact rules cover several readings, the
    /// first of these readings decides. Returns `None` if no exact rule covers a reading, or if the path is ambiguous.
    pub(crate) fn exact_rule(&self, path: &Readings) -> Option<String> {
        let is_exact = |reading: &String| self.0.iter().find(|it| !it.is_prefix && it.covers_leniently(reading));
        let of_page = |data: &PageData| self.0.iter().find(|it| !it.is_prefix && it.covers_data(data));
        let paths = path.0.as_ref()?;
        let pattern = paths.iter().flat_map(|path| &path.as_path).find_map(is_exact);
        let pattern = pattern.or_else(|| paths.iter().filter_map(|path| path.as_data.as_ref()).find_map(of_page));
        pattern.map(|pattern| pattern.lenient.clone())
    }

    /// Returns true if a backend could read the path as one that a rule covers, or if the path is ambiguous. This is
    /// for rules that restrict; [`cover`](Self::cover) is for rules that exempt.
    pub(crate) fn may_cover(&self, path: &Readings) -> bool {
        let covers = |path: &Read| {
            path.as_path.iter().any(|reading| self.covers_lenient(reading))
                || path.as_data.as_ref().is_some_and(|data| self.may_cover_data(data))
        };
        path.0.as_ref().is_none_or(|paths| paths.iter().any(covers))
    }

    /// Returns whether a path may be that of the data of a page that a rule covers.
    pub(super) fn may_cover_data(&self, data: &PageData) -> bool {
        self.0.iter().any(|pattern| pattern.covers_data(data))
    }
}

/// The readings of a request's path and of the path in its query. A reading is a path that a backend could take the
/// requested path for. `None` if the path, or the path in the query, is ambiguous.
#[derive(Debug)]
pub(crate) struct Readings(Option<Vec<Read>>);

/// What a backend could take a path for.
#[derive(Debug)]
struct Read {
    as_path: Vec<String>,
    as_data: Option<PageData>,
}

impl Readings {
    /// Reads a path with or without a query.
    pub(crate) fn of(path_and_query: &str) -> Self {
        let paths = [Some(without_query(path_and_query)), path_in_query(path_and_query)];
        let read = |path: &str| {
            let lenient = read_leniently(path)?;
            let as_path = readings(&lenient).into_iter().map(Cow::into_owned).collect();
            Some(Read { as_path, as_data: PageData::of(&lenient) })
        };
        Self(paths.into_iter().flatten().map(read).collect())
    }
}

impl FromIterator<Pattern> for PathPatterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

impl Pattern {
    fn parse(pattern: &str) -> Option<Self> {
        let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
        let path = prefix.unwrap_or(pattern);
        let lenient = read_leniently(path).filter(|_| path.starts_with('/') && !path.contains(['*', '?']))?;
        let is_prefix = prefix.is_some();
        let script = without_format(&lenient).filter(|_| !is_prefix).map(str::to_owned);
        Some(Self { path: path.to_owned(), lenient, script, is_prefix })
    }

    fn covers(&self, path: &str) -> bool {
        if self.is_prefix { path.starts_with(&self.path) } else { path == self.path }
    }

    fn covers_data(&self, data: &PageData) -> bool {
        data.may_be_of(&self.lenient)
    }

    /// Returns whether a backend could serve what the rule names for this reading. A rule for `/login.php` also covers
    /// `/login` and `/login/x`, for which some servers run that script.
    fn covers_leniently(&self, lenient: &str) -> bool {
        let is_below = |path: &str, takes_more: bool| {
            let below = lenient.strip_prefix(path);
            below.is_some_and(|below| below.is_empty() || takes_more && below.starts_with('/'))
        };
        is_below(&self.lenient, self.is_prefix) || self.script.as_deref().is_some_and(|script| is_below(script, true))
    }
}

/// Returns the paths that a framework could serve for a path that [`read_leniently`] returned, itself first. For
/// `/login.json`, Rails and others also serve `/login`. Servers of scripts serve `/login` for `/login/index.php`, and
/// `/login.php` for `/login.php/x`, and `/api/login` for `/api.php/login`. PHP frameworks serve `/shop/login`, or
/// `/login`, for `/shop/index.php/login`.
pub(crate) fn readings(lenient: &str) -> Vec<Cow<'_, str>> {
    let mut readings = Vec::new();
    add_readings(&mut readings, Cow::Borrowed(lenient));
    for (end, _) in lenient.match_indices('/').skip(1) {
        let (script, below) = lenient.split_at(end);
        let directory = script.rfind('/').map_or("", |at| &script[..at]);
        if let Some(stem) = without_format(script) {
            add_readings(&mut readings, Cow::Owned([stem, below].concat()));
            add_readings(&mut readings, Cow::Borrowed(script));
            add_readings(&mut readings, Cow::Borrowed(below));
            add_readings(&mut readings, Cow::Owned(format!("{directory}{below}")));
        }
    }
    readings
}

/// Adds up to four readings: a path, the path without its format, the path without the name of an index, and the path
/// without both.
fn add_readings<'p>(readings: &mut Vec<Cow<'p, str>>, path: Cow<'p, str>) {
    let others = [without_format(&path), without_index(&path), without_index(&path).and_then(without_format)];
    let others: Vec<_> = others.into_iter().flatten().map(|other| Cow::Owned(other.to_owned())).collect();
    readings.push(path);
    readings.extend(others);
}

/// The formats of scripts, except those that begin with `php`.
#[rustfmt::skip]
const SCRIPTS: [&str; 19] = [
    "phtml", "phar", "asp", "aspx", "ashx", "asmx", "axd", "svc", "cgi", "fcgi", "jsp", "jspx", "jspf", "cfm", "cfc",
    "cfml", "shtml", "stm", "pl",
];

/// Returns whether a part of a path that [`read_leniently`] returned is the name of a script, whatever follows the
/// format.
pub(super) fn has_script(lenient: &str) -> bool {
    lenient.split('/').any(is_script)
}

fn is_script(name: &str) -> bool {
    name.split('.').skip(1).any(|format| format.starts_with("php") || SCRIPTS.contains(&format))
}

/// Returns a path without the parts that backends may ignore: the front controller, the format, and the index of a
/// directory. The path of a page's data becomes the path of the page. So all paths for which a backend could serve the
/// same page have the same canonical path. Returns `None` if the path is ambiguous, or if the query begins with a path.
pub(crate) fn canonical_path(path_and_query: &str) -> Option<String> {
    if path_in_query(path_and_query).is_some() {
        return None;
    }
    let lenient = read_leniently(without_query(path_and_query))?;
    let front = lenient.find(".php").and_then(|at| {
        let ends = at + lenient[at..].find('/')?;
        Some((lenient[..at].rfind('/').unwrap_or(0), ends))
    });
    let below = front.map_or(lenient.clone(), |(begins, ends)| [&lenient[..begins], &lenient[ends..]].concat());
    let below = PageData::of(&below).map_or(below, |data| data.page());
    let directory = without_index(&below).unwrap_or(&below);
    Some(without_format(directory).unwrap_or(directory).to_owned())
}

/// Returns the directory of a path that ends in the name of an index.
fn without_index(lenient: &str) -> Option<&str> {
    let (directory, name) = lenient.rsplit_once('/')?;
    ["index", "default"].contains(&name.split('.').next()?).then_some(directory)
}

fn without_format(lenient: &str) -> Option<&str> {
    let name = lenient.rfind('/')? + 1;
    lenient[name..].find('.').filter(|&at| at > 0).map(|at| &lenient[..name + at])
}

/// Returns a request's target without its query.
pub(crate) fn without_query(path_and_query: &str) -> &str {
    let end = path_and_query.bytes().position(|byte| byte == b'?');
    end.map_or(path_and_query, |end| &path_and_query[..end])
}

/// Returns the path that a query begins with, if any: CodeIgniter serves `/login` for `/index.php?/login`.
pub(super) fn path_in_query(path_and_query: &str) -> Option<&str> {
    let (_, query) = path_and_query.split_once('?').filter(|(_, query)| query.starts_with('/'))?;
    query.split(['?', '&']).next()
}

/// The most bytes of a path. A longer path counts as ambiguous, because each reading of a path is compared with each
/// rule.
const MOST_BYTES: usize = 2048;
/// The most slashes of a path. A path with more slashes counts as ambiguous, for the same reason as a longer one.
const MOST_SEGMENTS: usize = 64;

/// The most names with a dot in a path. A path with more of them counts as ambiguous: each such name could be a script
/// and adds readings, and each reading is compared with each rule.
const MOST_NAMES_WITH_DOT: usize = 4;

/// Returns a path as a lenient backend reads it: unescaped, in lower case, and `/a/` as `/a`. Returns `None` if the
/// path is ambiguous, because a backend could read it as another one. A path is ambiguous
///
/// - if it does not begin with a slash, has parameters, a fragment, a backslash, an invalid escape, an escaped dot or
///   separator, or a character outside of ASCII (backends may decode overlong UTF-8, or convert other characters to
///   dots and slashes),
/// - if a segment is empty, contains `..`, `::` or `:$`, ends in a dot, begins or ends with a blank, or is in
///   parentheses, as the sessions of ASP.NET are,
/// - if a segment goes on after `.php`, where PHP frameworks cut it: `/index.phplogin`, `/x/index.php.css/login`,
/// - if it has two scripts, each of which could be the one that runs: `/index.php/api.php/login`,
/// - or if it exceeds [`MOST_BYTES`], [`MOST_SEGMENTS`] or [`MOST_NAMES_WITH_DOT`].
pub(super) fn read_leniently(path: &str) -> Option<String> {
    let is_clear = |byte: &u8| byte.is_ascii_graphic() && !b"\\;#".contains(byte);
    let is_clear_when_escaped = |byte: u8| byte == b' ' || is_clear(&byte) && !b"./%?".contains(&byte);
    if path.len() > MOST_BYTES || path.bytes().filter(|&byte| byte == b'/').count() > MOST_SEGMENTS {
        return None;
    }
    let mut escapes = path.split('%').skip(1);
    let escape = |text: &str| u8::from_str_radix(text.get(..2).filter(|digits| !digits.contains('+'))?, 16).ok();
    if !path.bytes().all(|byte| is_clear(&byte)) || !escapes.all(|text| escape(text).is_some_and(is_clear_when_escaped))
    {
        return None;
    }
    let plain = percent_decode_str(path).decode_utf8().ok()?.to_ascii_lowercase();
    let trimmed = plain.strip_suffix('/').unwrap_or(&plain);
    let mut segments = trimmed.split('/').skip(1);
    // Some file systems ignore dots and blanks at the end of a name.
    let is_ambiguous = |name: &str| {
        name.is_empty()
            || name.ends_with(['.', ' '])
            || name.starts_with(' ')
            || name.starts_with('(') && name.ends_with(')')
            || name.contains("..")
            || name.contains("::")
            || name.contains(":$")
            || goes_on_after_php(name)
    };
    let is_clear = path.starts_with('/') && !segments.any(is_ambiguous);
    let may_be_scripts = trimmed.split('/').filter(|name| name.contains('.')).count();
    let scripts = trimmed.split('/').filter(|name| is_script(name)).count();
    (is_clear && may_be_scripts <= MOST_NAMES_WITH_DOT && scripts <= 1).then(|| trimmed.to_owned())
}

/// Returns whether a name goes on after `.php` with anything but a single digit.
fn goes_on_after_php(name: &str) -> bool {
    let mut after = name.match_indices(".php").map(|(at, php)| &name.as_bytes()[at + php.len()..]);
    after.any(|rest| !matches!(rest, [] | [b'0'..=b'9']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(of: &[&str]) -> PathPatterns {
        PathPatterns::parse(&of.iter().map(|&one| one.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn may_cover_includes_every_reading_of_a_path() {
        let rules = patterns(&["/login", "/api/auth/*"]);
        for path in [
            "/login",
            "/login?x=/play",
            "/login/",
            "/LogIn",
            "/login#x",
            "/play#/login",
            "/api/auth",
            "/api/auth/token",
            "/api/auth//token",
            "/api/auth/token;x",
            "/api/auth/x/../token",
            "/api//auth/token",
            "/%6cogin",
            "/%4cogin%2f",
            "/%c1%acogin",
            "/./login",
            "//",
            "/l\u{f6}gin",
            "/login.json",
            "/Login.HTML?x",
            "/login.tar.gz",
            "/api/auth.json",
            "/index.php/login",
            "/INDEX.PHP/login.html",
            "/x/app.php/api/auth/token",
            "/login.json/x",
            "/login.php/x/y",
            "/api/auth.aspx/x",
            "/login/index.php",
            "/login/default.aspx",
            "/login/index",
            "/login/index.php/x",
            "/shop/index.php/api/auth/token",
            "/api/index.php/auth/token",
            "foo:/login",
            "/?/login",
            "/index.php?/api/auth/token&x=1",
            "/play?/../login",
            "/(S(x))/login",
            "/login::$DATA",
            "/index.php5/login",
            "/api.php/auth/token",
            "/index.php/api.php/auth/token",
            "/x.cfc/y/z.shtml",
            "/index.phplogin",
            "/index.php.a/aaaa/login",
            "/login/__data.json",
            "/_next/data/b1/login.json",
            "/shop/_next/data/b1/api/auth/token.json",
            "/login/.data",
            "/login/_payload-json",
            "/en/_next/data/b1/login.json",
            "/page-data/api/auth/page-data.json",
            "/login:$i30:$INDEX_ALLOCATION",
            "",
        ] {
            assert!(rules.may_cover(&Readings::of(path)), "{path}");
        }
        for path in [
            "/play.json",
            "/.login",
            "/login/x",
            "/login/indexes.php",
            "/index.php/play",
            "/index.php",
            "/play",
            "/",
            "/loginx",
            "/play?x=/login",
            "/play?x=%2f..#",
            "/play?/play",
            "/play(1)/a:b",
            "/api/authority",
            "/%70lay",
        ] {
            assert!(!rules.may_cover(&Readings::of(path)), "{path}");
        }
    }

    #[test]
    fn all_readings_of_a_path_have_the_same_canonical_path() {
        for path in [
            "/login",
            "/Login/",
            "/login.json",
            "/login.tar.gz",
            "/index.php/login",
            "/index.php/%6cogin.html",
            "/login/index.html",
            "/login.php/",
            "/index.php5/login",
            "/login/__data.json",
            "/_next/data/b1/login.json",
        ] {
            assert_eq!(canonical_path(path).as_deref(), Some("/login"), "{path}");
        }
        assert_eq!(canonical_path("/v1.0/users/5").as_deref(), Some("/v1.0/users/5"));
        assert_eq!(canonical_path("/index.html").as_deref(), Some(""));
        assert_eq!(canonical_path("/shop/index.php/login.json").as_deref(), Some("/shop/login"));
        assert_eq!(canonical_path("/").as_deref(), Some(""));
        assert_eq!(canonical_path("/.login").as_deref(), Some("/.login"));
        assert_eq!(canonical_path("//login"), None);
        assert_eq!(canonical_path("/z1?/login"), None);
        assert_eq!(canonical_path("/login?a=/b").as_deref(), Some("/login"));
    }

    #[test]
    fn a_path_that_a_backend_could_read_as_a_rule_counts_as_that_rule() {
        let rules = patterns(&["/news", "/wp-login.php", "/api/*"]);
        for path in [
            "/wp-login.php",
            "/WP-Login.php/1",
            "/wp-login.php/2/3.x",
            "/wp-login",
            "/wp-login/index.php",
            "/wp-login/1",
            "/z1?/wp-login.php",
            "/wp-login.php/news",
        ] {
            assert!(rules.may_cover(&Readings::of(path)), "{path}");
            assert_eq!(rules.exact_rule(&Readings::of(path)).as_deref(), Some("/wp-login.php"), "{path}");
        }
        assert_eq!(rules.exact_rule(&Readings::of("/api/x")), None);
        assert_eq!(rules.exact_rule(&Readings::of("//")), None);
    }

    #[test]
    fn an_exact_rule_covers_its_path_alone() {
        let rules = patterns(&["/healthz"]);
        assert!(rules.cover("/healthz"));
        assert_eq!(without_query("/healthz?verbose=1?"), "/healthz");
        for other in ["/healthz/", "/healthz/x", "/Healthz", "/", "", "/x/healthz"] {
            assert!(!rules.cover(other), "{other}");
        }
    }

    #[test]
    fn a_prefix_rule_covers_what_lies_below() {
        let rules = patterns(&["/static/*"]);
        assert!(rules.cover("/static/app.js"));
        assert!(rules.cover("/static/"));
        assert!(!rules.cover("/static"));
        assert!(!rules.cover("/statics/app.js"));
        assert!(patterns(&["/*"]).covers_lenient("") && patterns(&["/*"]).covers_lenient("/a/b"));
    }

    #[test]
    fn a_lenient_backend_unescapes_folds_case_and_forgets_a_last_slash() {
        for (path, read) in [
            ("/Static/App.JS", "/static/app.js"),
            ("/%73tatic/a%20b", "/static/a b"),
            ("/static/", "/static"),
            ("/", ""),
            ("/a/[id].js", "/a/[id].js"),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            assert_eq!(read_leniently(path).as_deref(), Some(read), "{path}");
        }
    }

    #[test]
    fn read_leniently_refuses_ambiguous_paths() {
        for trick in [
            "/static/../game",
            "/static/%2e%2E/game",
            "/static//game",
            "/static/%2fgame",
            "/static/..;/game",
            "/static/./game",
            "/static/.",
            "/static/game.",
            "/static/game%20",
            "/static/%20game",
            "/static/%c0%ae%c0%ae/game",
            "/static/%ef%bc%8e%ef%bc%8e/game",
            "/static/\u{ff0e}\u{ff0e}/game",
            "/static/%5c..%5cgame",
            "/static/%252e%252e/game",
            "/static#/../game",
            "/static%23/../game",
            "/static%3f/game",
            "/static/%00/game",
            "/static/%0d%0a/game",
            "/static/%",
            "/static/%4",
            "/static/%zz",
            "/static/%+1",
            "/a\\b",
            &"/a".repeat(65),
            &"/a".repeat(7000),
            &format!("/{}", "a".repeat(2048)),
            "/a b",
            "//",
            "/a.b/a.b/a.b/a.b/a.b/a.b/a.b/a.b/a.b",
        ] {
            assert_eq!(read_leniently(trick), None, "{trick}");
        }
    }

    #[test]
    fn a_rule_that_means_nothing_is_refused() {
        for rule in ["", "healthz", "*", "/a*", "/*/b", "/a?b", "/a#b", "/a//b", "/../a", "/caf\u{e9}", "/a%2fb"] {
            assert!(PathPatterns::parse(&[rule.to_owned()]).is_err(), "{rule:?}");
        }
    }
}
