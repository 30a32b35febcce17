//! Ready configurations: the files of `examples/proxies`, and one of headcount itself. The tests run all of them
//! unchanged, except Traefik's.

/// A configuration for a proxy that asks headcount, or for headcount itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Recipe {
    /// nginx: auth_request
    Nginx,
    /// Caddy: forward_auth
    Caddy,
    /// Envoy: ext_authz over HTTP
    Envoy,
    /// HAProxy: needs the script printed by haproxy-lua
    Haproxy,
    /// HAProxy's script
    HaproxyLua,
    /// Traefik: ForwardAuth; not run by our tests
    Traefik,
    /// headcount itself: every key, with its meaning
    Toml,
}

impl Recipe {
    /// Returns the whole file.
    pub fn text(self) -> &'static str {
        match self {
            Self::Nginx => include_str!("../../examples/proxies/nginx.conf"),
            Self::Caddy => include_str!("../../examples/proxies/Caddyfile"),
            Self::Envoy => include_str!("../../examples/proxies/envoy.yaml"),
            Self::Haproxy => include_str!("../../examples/proxies/haproxy.cfg"),
            Self::HaproxyLua => include_str!("../../examples/proxies/headcount.lua"),
            Self::Traefik => include_str!("../../examples/proxies/traefik.yaml"),
            Self::Toml => super::config::TEMPLATE.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MAX_REFUSAL_DELAY, RECIPE_TIMEOUTS};
    use std::time::Duration;

    /// Returns the times that follow a word in a file, in the notations of the proxies: `100ms`, `0.1s`, `100`.
    fn times_after(word: &str, text: &str) -> Vec<Duration> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '-']));
        let rest = lines.flat_map(|line| line.match_indices(word).map(move |(at, _)| &line[at + word.len()..]));
        let written = rest.map(|rest| {
            let rest = rest.trim_start_matches([' ', ':', '=']);
            rest.split([' ', ';', '}', ',', ')']).next().unwrap_or_default().to_owned()
        });
        let read = |time: String| match time.strip_suffix('s').and_then(|seconds| seconds.parse().ok()) {
            Some(seconds) => Duration::from_secs_f64(seconds),
            None => Duration::from_millis(time.trim_end_matches("ms").parse().expect("a time")),
        };
        written.map(read).collect()
    }

    /// The name of a recipe; the recipe; its settings for the time to wait for an answer; its setting for the time to
    /// wait for a connection. Each setting comes with the text that contains it.
    type Place = (&'static str, Recipe, Vec<(&'static str, &'static str)>, (&'static str, &'static str));

    #[test]
    fn each_recipe_waits_as_long_as_it_says_and_as_its_constant() {
        let gate = Recipe::Haproxy.text().split("\nbackend headcount\n").nth(1).unwrap();
        let envoy = Recipe::Envoy.text();
        let (_, cluster) = envoy.split_once("\n    - name: headcount\n").unwrap();
        let cluster = cluster.split("\n    - name: ").next().unwrap();
        let places: [Place; 4] = [
            (
                "nginx",
                Recipe::Nginx,
                ["proxy_send_timeout", "proxy_read_timeout"].map(|word| (word, Recipe::Nginx.text())).to_vec(),
                ("proxy_connect_timeout", Recipe::Nginx.text()),
            ),
            (
                "caddy",
                Recipe::Caddy,
                vec![("response_header_timeout", Recipe::Caddy.text())],
                ("dial_timeout", Recipe::Caddy.text()),
            ),
            ("envoy", Recipe::Envoy, vec![("per_try_timeout", envoy)], ("connect_timeout", cluster)),
            ("haproxy", Recipe::Haproxy, vec![("timeout server", gate)], ("timeout connect", gate)),
        ];
        for ((name, waits), (place, recipe, words, (connects, text))) in RECIPE_TIMEOUTS.into_iter().zip(places) {
            assert_eq!(name, place);
            let says = format!("does not answer within {} s", waits.as_secs_f64());
            assert!(recipe.text().contains(&says), "{name} does not say: {says}");
            assert_eq!(times_after(connects, text), [Duration::from_secs(1)], "{name}: {connects}");
            for (word, text) in words {
                assert_eq!(times_after(word, text), [waits], "{name}: {word}");
            }
        }
    }

    /// If a refusal comes after the proxy's time limit, the proxy admits the request.
    #[test]
    fn each_recipe_waits_longer_than_any_refusal_takes() {
        const SLOWEST_CHECK: Duration = Duration::from_millis(300);
        assert!(RECIPE_TIMEOUTS.iter().all(|(_, waits)| *waits >= MAX_REFUSAL_DELAY + SLOWEST_CHECK));
    }

    /// Returns the number that follows a word in a part of a file.
    fn number_after(word: &str, text: &str) -> u64 {
        let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("no {word:?}"));
        rest.split_whitespace().next().unwrap_or_default().parse().expect("a number")
    }

    /// In HAProxy each check needs a connection, too. Without a free one it fails, and the request is admitted.
    #[test]
    fn haproxy_has_room_for_a_check_of_each_client() {
        let text = Recipe::Haproxy.text();
        let part = |name: &str| {
            let (_, rest) = text.split_once(&format!("\n{name}\n")).unwrap_or_else(|| panic!("no {name}"));
            rest.split("\n\n").next().unwrap_or_default()
        };
        let (all, clients) =
            (number_after(" maxconn ", part("global")), number_after(" maxconn ", part("frontend web")));
        assert!(clients * 2 < all, "{clients} clients and their checks in {all} connections");
        for word in ["timeout http-request ", "timeout http-keep-alive "] {
            assert_eq!(times_after(word, part("defaults")), [Duration::from_secs(10)], "{word}");
        }
    }

    /// A failed health check takes up to twice its interval: the pause before it, and its time limit, which is as long.
    #[test]
    fn haproxy_takes_no_late_answer_for_silence_and_says_when_it_does() {
        let text = Recipe::Haproxy.text();
        let failures = number_after(" fall ", text);
        assert!(failures >= 3, "{failures} late answers make it admit everybody");
        let (every, failures) = (times_after(" inter", text)[0], u32::try_from(failures).unwrap());
        let says = format!("detect within {} s that headcount is gone", (every * 2 * failures).as_secs_f64());
        assert!(text.contains(&says), "{says}");
    }
}
