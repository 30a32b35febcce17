//! `[[route]]`: how requests to certain paths are treated.

#[cfg(feature = "tower")]
use super::page_data::PageData;
use super::word;
#[cfg(feature = "tower")]
use super::{ConfigError, PathPatterns, paths};
#[cfg(feature = "tower")]
use http::Method;
use serde::{Deserialize, Serialize};

/// One rule. The first rule that covers a path gives the path its class.
///
/// ```
/// use headcount::{Config, RouteClass};
/// let config: Config = toml::from_str(r#"
///     [[route]]
///     path = "/api/presence/me"
///     class = "admit"
///
///     [[route]]
///     path = "/api/presence/*"
///     class = "observe"
/// "#)?;
/// let first = config.route.iter().find(|route| route.path.starts_with("/api/presence/")).unwrap();
/// assert_eq!(first.class, RouteClass::Admit, "the exception stands before the rule");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Route {
    /// The path: exact, or a prefix that ends in `/*`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a path, or a prefix that ends in /*", "such_as" = "\"/api/presence/*\""))
    )]
    pub path: String,
    /// How requests to this path are treated.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"admit\", \"observe\", \"exempt\" or \"confirm\"", "such_as" = "\"observe\""))
    )]
    pub class: RouteClass,
}

/// How requests to a path are treated. A request that asks for another protocol, such as a WebSocket, is always treated
/// as `Admit` says: many WebSocket servers do not look at the path.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use headcount::{Headcount, RouteClass};
/// use tower::ServiceExt;
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).route("/news", RouteClass::Observe).build()?;
/// let app = Router::new().route("/{page}", get(|| async { "a page" })).layer(headcount.layer());
/// for (page, active_users) in [("/news", 0), ("/play", 1)] {
///     let request = Request::get(page).header("authorization", "Bearer alice").body(Body::empty())?;
///     assert_eq!(app.clone().oneshot(request).await?.status(), 200);
///     assert_eq!(headcount.status().active_users.estimate, active_users, "{page}");
/// }
/// # Ok(()) }
/// # run().unwrap() }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RouteClass {
    /// The default. An active user is renewed. A newcomer is admitted or rejected; an admitted newcomer becomes active.
    #[default]
    Admit,
    /// As `admit`, but no user is renewed or recorded, and no limit of newcomers is asked. For requests that clients
    /// repeat in the background.
    Observe,
    /// Always admitted. No decision is made.
    Exempt,
    /// An active user is renewed. An admitted newcomer is recorded only after the application confirms it, with
    /// `POST /v1/confirm` or with `Headcount::admit`.
    Confirm,
}

/// All path rules: `admission.exempt_paths`, then each `[[route]]`.
#[cfg(feature = "tower")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    exempt: PathPatterns,
    rules: Vec<(PathPatterns, RouteClass)>,
}

#[cfg(feature = "tower")]
impl Routes {
    pub(crate) fn parse(exempt_paths: &[String], routes: &[Route]) -> Result<Self, ConfigError> {
        let rule = |route: &Route| match PathPatterns::parse(std::slice::from_ref(&route.path)) {
            Ok(pattern) => Ok((pattern, route.class)),
            Err(found) => Err(ConfigError::RoutePath { found }),
        };
        Ok(Self {
            exempt: PathPatterns::parse(exempt_paths).map_err(|found| ConfigError::ExemptPath { found })?,
            rules: routes.iter().map(rule).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the class of a path, with or without a query. If backends could read the path in several ways, the
    /// strictest class of the readings applies. A reading such as `/play` for `/play.json` counts only if a rule covers
    /// it. The data of a page, as SvelteKit and Next.js serve it, has no milder class than the page.
    ///
    /// An unknown path (`None`) and an ambiguous path have the strictest class, `Admit`. A path that names a script has
    /// this class, too, because PHP frameworks serve `/play` for `/static/index.php/play`. The exception is a path that
    /// an exact rule names.
    ///
    /// `exempt_paths` exempts only requests that read: `GET`, `HEAD` and `OPTIONS`. Some frameworks run a function that
    /// a header or the body of a `POST` names, whatever the path is. Many WebSocket servers do not look at the path
    /// either, so a request that `upgrades` to another protocol has the class `Admit`.
    pub(crate) fn class(&self, method: &Method, upgrades: bool, path: Option<&str>) -> RouteClass {
        let Some(path_and_query) = path.filter(|_| !upgrades) else { return RouteClass::Admit };
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let rules = Rules { routes: self, reads };
        let in_query = paths::path_in_query(path_and_query).map(|in_query| rules.class_of_path(in_query));
        let class = rules.class_of_path(paths::without_query(path_and_query));
        in_query.map_or(class, |in_query| class.stricter(in_query))
    }
}

/// The rules for a request.
#[cfg(feature = "tower")]
struct Rules<'r> {
    routes: &'r Routes,
    /// Whether the request reads, so that `exempt_paths` counts.
    reads: bool,
}

#[cfg(feature = "tower")]
impl Rules<'_> {
    fn class_of_path(&self, path: &str) -> RouteClass {
        let literal = self.first(|patterns| patterns.cover(path)).unwrap_or_default();
        if literal == RouteClass::Admit {
            return RouteClass::Admit;
        }
        let Some(lenient) = paths::read_leniently(path) else { return RouteClass::Admit };
        if paths::has_script(&lenient) {
            return self.first(|patterns| patterns.are_exactly(path)).unwrap_or_default();
        }
        let read = |reading: &str| self.first(|patterns| patterns.covers_lenient(reading));
        let readings = paths::readings(&lenient);
        let others = readings.iter().skip(1).filter_map(|reading| read(reading));
        let class = others.fold(literal.stricter(read(&lenient).unwrap_or_default()), RouteClass::stricter);
        let Some(data) = PageData::of(&lenient) else { return class };
        if self.first(|patterns| patterns.are_exactly(path)).is_some() {
            return class;
        }
        let of_page = [data.page(), data.page_without_base()].map(|page| read(&page).unwrap_or_default());
        // A rule that covers the path itself stands after the one that applies.
        let covers_data = |patterns: &PathPatterns| patterns.may_cover_data(&data) && !patterns.cover(path);
        let may_cover = self.routes.rules.iter().filter(|(patterns, _)| covers_data(patterns));
        may_cover.map(|(_, class)| *class).chain(of_page).fold(class, RouteClass::stricter)
    }

    /// The class of the first rule that covers a path.
    fn first(&self, covers: impl Fn(&PathPatterns) -> bool) -> Option<RouteClass> {
        if self.reads && covers(&self.routes.exempt) {
            return Some(RouteClass::Exempt);
        }
        self.routes.rules.iter().find(|(patterns, _)| covers(patterns)).map(|(_, class)| *class)
    }
}

#[cfg(feature = "tower")]
impl RouteClass {
    fn stricter(self, other: Self) -> Self {
        let strictness = |class: &Self| match class {
            Self::Exempt => 0,
            Self::Observe => 1,
            Self::Confirm => 2,
            Self::Admit => 3,
        };
        std::cmp::max_by_key(self, other, strictness)
    }
}

#[cfg(all(test, feature = "tower"))]
mod tests {
    use super::*;

    fn route(path: &str, class: RouteClass) -> Route {
        Route { path: path.into(), class }
    }

    #[test]
    fn the_first_rule_that_covers_a_path_gives_its_class() {
        let rules = [
            route("/api/presence/me", RouteClass::Admit),
            route("/api/presence/*", RouteClass::Observe),
            route("/login", RouteClass::Confirm),
            route("/healthz", RouteClass::Observe),
        ];
        let routes = Routes::parse(&["/healthz".into()], &rules).unwrap();
        for (path, class) in [
            ("/api/presence/me", RouteClass::Admit),
            ("/api/presence/all?x=1", RouteClass::Observe),
            ("/login", RouteClass::Confirm),
            ("/healthz", RouteClass::Exempt),
            ("/play", RouteClass::Admit),
        ] {
            assert_eq!(routes.class(&Method::GET, false, Some(path)), class, "{path}");
        }
        assert_eq!(routes.class(&Method::GET, false, None), RouteClass::Admit);
    }

    #[test]
    fn exempt_paths_exempt_requests_that_read() {
        let rules = [route("/webhook", RouteClass::Exempt), route("/status", RouteClass::Observe)];
        let routes = Routes::parse(&["/healthz".into(), "/static/*".into(), "/status".into()], &rules).unwrap();
        for (method, classes) in [
            (Method::GET, [RouteClass::Exempt; 4]),
            (Method::HEAD, [RouteClass::Exempt; 4]),
            (Method::POST, [RouteClass::Admit, RouteClass::Admit, RouteClass::Observe, RouteClass::Exempt]),
            (
                Method::from_bytes(b"get").unwrap(),
                [RouteClass::Admit, RouteClass::Admit, RouteClass::Observe, RouteClass::Exempt],
            ),
        ] {
            let paths = ["/healthz", "/static/a.js", "/status", "/webhook"];
            assert_eq!(paths.map(|path| routes.class(&method, false, Some(path))), classes, "{method}");
        }
        for path in ["/healthz", "/static/a.js", "/status", "/webhook"] {
            assert_eq!(routes.class(&Method::GET, true, Some(path)), RouteClass::Admit, "a WebSocket to {path}");
        }
    }

    #[test]
    fn a_path_has_the_strictest_class_of_its_readings() {
        let rules = [
            route("/api/presence/me", RouteClass::Admit),
            route("/api/presence/*", RouteClass::Observe),
            route("/login", RouteClass::Confirm),
            route("/login/*", RouteClass::Observe),
            route("/static/admin.php", RouteClass::Admit),
        ];
        let routes = Routes::parse(&["/healthz".into(), "/static/*".into(), "/status.php".into()], &rules).unwrap();
        for (path, class) in [
            ("/static/a%20b.js", RouteClass::Exempt),
            ("/api/presence/all", RouteClass::Observe),
            ("/api/presence/../play", RouteClass::Admit),
            ("/api/presence/%6de", RouteClass::Admit),
            ("/api/presence/ME", RouteClass::Admit),
            ("/api/presence/me/", RouteClass::Admit),
            ("/api/presence/me.json", RouteClass::Admit),
            ("/api/presence/all.json", RouteClass::Observe),
            ("/static/favicon.ico", RouteClass::Exempt),
            ("/static/app.plist", RouteClass::Exempt),
            ("/static/v1.2/app.js", RouteClass::Exempt),
            ("/static/index.php/play", RouteClass::Admit),
            ("/static/a/x.PHP5/play.css", RouteClass::Admit),
            ("/static/index.php", RouteClass::Admit),
            ("/status.php", RouteClass::Exempt),
            ("/status.php/play", RouteClass::Admit),
            ("/static/admin.php", RouteClass::Admit),
            ("/static/index.php.css/play", RouteClass::Admit),
            ("/static/play/index.php.css", RouteClass::Admit),
            ("/static/__data.json", RouteClass::Exempt),
            ("/login/__data.json", RouteClass::Confirm),
            ("/api/presence/me/.data", RouteClass::Admit),
            ("/api/_next/data/b1/presence/me.json", RouteClass::Admit),
            ("/static/_next/static/login.js", RouteClass::Exempt),
            ("/static/_plugin-x.js", RouteClass::Exempt),
            ("/_next/image", RouteClass::Admit),
            ("/static/_next/data/b1/play.json", RouteClass::Admit),
            ("/_next/data/b1/healthz.json", RouteClass::Admit),
            ("/login/", RouteClass::Confirm),
            ("/HEALTHZ", RouteClass::Admit),
            ("/healthz#", RouteClass::Admit),
            ("/healthz?/play", RouteClass::Admit),
            ("/healthz?/static/a.js", RouteClass::Exempt),
            ("/healthz#/../play", RouteClass::Admit),
            ("/static/%c0%ae%c0%ae/play", RouteClass::Admit),
            ("/static/\u{ff0e}\u{ff0e}/play", RouteClass::Admit),
        ] {
            assert_eq!(routes.class(&Method::GET, false, Some(path)), class, "{path}");
        }
    }

    #[test]
    fn a_rule_that_means_nothing_names_its_key() {
        let error = Routes::parse(&[], &[route("login", RouteClass::Admit)]).unwrap_err();
        assert_eq!(error.key(), "route.path");
        assert!(error.to_string().contains("\"login\""), "{error}");
        assert_eq!(Routes::parse(&["login".into()], &[]).unwrap_err().key(), "admission.exempt_paths");
    }
}
