//! Ready configurations for proxies: the files of `examples/proxies`, which the tests run as they are.

/// A configuration that puts headcount in front of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Recipe {
    /// nginx: auth_request
    Nginx,
    /// Caddy: forward_auth
    Caddy,
    /// Envoy: ext_authz over HTTP
    Envoy,
    /// HAProxy: needs the script of haproxy-lua beside it
    Haproxy,
    /// HAProxy's script
    HaproxyLua,
    /// Traefik: ForwardAuth; not run by our tests
    Traefik,
}

impl Recipe {
    /// The whole file.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Nginx => include_str!("../../examples/proxies/nginx.conf"),
            Self::Caddy => include_str!("../../examples/proxies/Caddyfile"),
            Self::Envoy => include_str!("../../examples/proxies/envoy.yaml"),
            Self::Haproxy => include_str!("../../examples/proxies/haproxy.cfg"),
            Self::HaproxyLua => include_str!("../../examples/proxies/headcount.lua"),
            Self::Traefik => include_str!("../../examples/proxies/traefik.yaml"),
        }
    }
}
