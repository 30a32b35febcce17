//! The paths under which web frameworks serve the data of pages. A rule for a page must cover the data of the page.
//!
//! | framework | data of `/shop/play` |
//! |---|---|
//! | SvelteKit | `/shop/play/__data.json` |
//! | Nuxt | `/shop/play/_payload.json`, also `_payload.js`, `_payload.BUILD.json` and `_payload-json` |
//! | Qwik | `/shop/play/q-data.json` |
//! | React Router | `/shop/play.data`, `/shop/play/.data`, `/shop/play/_.data`; `/_root.data` for `/` |
//! | Gatsby | `/page-data/shop/play/page-data.json` |
//! | Next.js | `/_next/data/BUILD/shop/play.json`; `/shop/_next/data/BUILD/play.json` if `/shop` is the base of all pages |

/// A path that may be that of a page's data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageData {
    /// The parts of the path that may belong to the page, without their formats.
    parts: Vec<String>,
    /// The number of parts that may belong to the base of all pages instead.
    base: usize,
}

impl PageData {
    /// Reads a path that [`read_leniently`](super::paths::read_leniently) returned. Returns `None` if no framework
    /// serves data of a page there.
    pub(super) fn of(lenient: &str) -> Option<Self> {
        let names: Vec<_> = lenient.split('/').skip(1).collect();
        let next = names.windows(2).position(|pair| pair == ["_next", "data"]);
        if next.is_none() && !names.iter().any(|name| is_marker(name)) || is_built(&names) {
            return None;
        }
        let is_of_page = |place: usize, name: &str| {
            let is_of_next = next.is_some_and(|next| (next..next + 3).contains(&place));
            !is_of_next && !is_marker(name)
        };
        let mut parts: Vec<_> = (names.iter().enumerate())
            .filter(|&(place, name)| is_of_page(place, name))
            .map(|(_, name)| name.split('.').next().unwrap_or_default().to_owned())
            .collect();
        parts.pop_if(|last| last == "index");
        Some(Self { base: next.unwrap_or_default().min(parts.len()), parts })
    }

    /// Returns whether the data may be that of the page of this path, or of a page below it. The names of the page must
    /// be among those of the data, in their order, because frameworks add others, such as the language. Below the root
    /// only the root itself counts.
    pub(super) fn may_be_of(&self, page: &str) -> bool {
        let mut names = page.split('/').skip(1).filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() {
            return self.parts.is_empty();
        }
        let mut rest = self.parts.iter();
        names.all(|name| rest.any(|part| part == name.split('.').next().unwrap_or_default()))
    }

    /// Returns the path of the page.
    pub(super) fn page(&self) -> String {
        self.parts.iter().map(|part| format!("/{part}")).collect()
    }

    /// Returns the path of the page without the base of all pages.
    pub(super) fn page_without_base(&self) -> String {
        self.parts[self.base..].iter().map(|part| format!("/{part}")).collect()
    }
}

/// Returns whether a part of a path marks the data of a page.
fn is_marker(name: &str) -> bool {
    let is_built = [".js", ".mjs", ".css", ".map"].iter().any(|ending| name.ends_with(ending));
    let is_file = || name.strip_prefix(['_', '.']).is_some_and(|name| name.contains('.')) && !is_built;
    matches!(name, "__route.js" | "page-data" | "page-data.json" | "q-data.json" | ".data" | ".rsc")
        || name.starts_with("_payload")
        || is_file()
}

/// Returns whether a path is that of a file that a framework has built, such as a script. Their names can be those of
/// pages.
fn is_built(names: &[&str]) -> bool {
    let is_folder =
        |pair: &[&str]| matches!(pair, ["_next", "static"] | ["_app", "immutable"] | ["_nuxt" | "_astro", _]);
    names.windows(2).any(is_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_page_is_that_of_its_path_and_no_other() {
        for data in [
            "/shop/play/__data.json",
            "/shop/play/_payload.json",
            "/shop/play/_payload-json",
            "/shop/play/_payload.a1b2.json",
            "/shop/play/_payload.js",
            "/shop/play/q-data.json",
            "/shop/play/.data",
            "/shop/play/_.data",
            "/shop/play/_.rsc",
            "/page-data/shop/play/page-data.json",
            "/_next/data/b1/shop/play.json",
            "/shop/_next/data/b1/play.json",
            "/shop/play/__route.js",
        ] {
            let data = PageData::of(data).unwrap_or_else(|| panic!("{data}"));
            assert_eq!(data.page(), "/shop/play", "{data:?}");
            let covered = ["/shop/play", "/play", "/shop", "/other", "/play/shop", ""];
            let may_be = covered.map(|page| data.may_be_of(page));
            assert_eq!(may_be, [true, true, true, false, false, false], "{data:?}");
        }
    }

    #[test]
    fn the_root_has_data_too() {
        for data in ["/_root.data", "/__data.json", "/_payload.json", "/_next/data/b1/index.json", "/.data"] {
            let read = PageData::of(data).unwrap_or_else(|| panic!("{data}"));
            assert!(read.may_be_of("") && read.page().is_empty(), "{data}");
        }
    }

    #[test]
    fn a_base_may_belong_to_the_page_or_not() {
        let data = PageData::of("/shop/_next/data/b1/en/play.json").unwrap();
        assert_eq!((data.page().as_str(), data.page_without_base().as_str()), ("/shop/en/play", "/en/play"));
        assert!(data.may_be_of("/shop/play") && data.may_be_of("/play"));
    }

    #[test]
    fn other_paths_are_no_data() {
        for path in [
            "/shop/play.json",
            "/users/_search",
            "/_search/login",
            "/.well-known/login",
            "/.login",
            "/_next/static/chunks/login.a1.js",
            "/shop/_next/static/css/login.css",
            "/_nuxt/login.a1.js",
            "/_app/immutable/nodes/login.js",
            "/next/data/login.json",
            "/_next/image",
            "/assets/_plugin-vue_export-helper-a1.js",
            "",
        ] {
            assert_eq!(PageData::of(path), None, "{path}");
        }
    }
}
