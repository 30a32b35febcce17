//! The pages of the book and the repository: every link leads somewhere, every page is in the summary, and every alert
//! has a page.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut directories = vec![PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => directories.push(path),
                // These are links of rustdoc.
                Some(ending) if ending == "md" && !path.ends_with("rustdoc_links.md") => pages.push(path),
                _ => {}
            }
        }
    }
    let root = ["README.md", "ARCHITECTURE.md", "BUGS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    pages.extend(root.map(PathBuf::from));
    pages.sort();
    pages
}

/// The links and pictures of a page, and the anchors of its headings.
fn links_and_anchors(page: &Path) -> (Vec<String>, BTreeSet<String>) {
    let text = fs::read_to_string(page).unwrap();
    let (mut links, mut anchors, mut heading) = (Vec::new(), BTreeSet::new(), None);
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) if heading.is_some() => heading.as_mut().unwrap().push_str(&text),
            Event::End(TagEnd::Heading(_)) => {
                let words = heading.take().unwrap_or_default().to_lowercase();
                let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
            }
            _ => {}
        }
    }
    (links, anchors)
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    for page in pages() {
        for link in links_and_anchors(&page).0 {
            if link.starts_with("https://") || link.starts_with("http://127.0.0.1") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads to no file", page.display());
            let found = anchor.is_empty() || links_and_anchors(&target).1.contains(anchor);
            assert!(found, "{}: {link} leads to no heading", page.display());
        }
    }
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let listed: BTreeSet<_> =
        links_and_anchors(Path::new("docs/SUMMARY.md")).0.iter().map(|link| Path::new("docs").join(link)).collect();
    for page in pages().into_iter().filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md")) {
        assert!(listed.contains(&page), "docs/SUMMARY.md lacks {}", page.display());
    }
}

#[test]
fn every_alert_has_a_page_that_the_summary_of_alerts_lists() {
    let alerts = fs::read_to_string("examples/ops/alerts.yml").unwrap();
    let list = fs::read_to_string("docs/runbook/README.md").unwrap();
    let mut names: BTreeSet<_> = fs::read_dir("docs/runbook").unwrap().map(|page| page.unwrap().file_name()).collect();
    for rule in alerts.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        assert!(names.remove(&std::ffi::OsString::from(format!("{name}.md"))), "there is no docs/runbook/{name}.md");
        let url = format!("runbook_url: https://docs.rs/crate/headcount/latest/source/docs/runbook/{name}.md");
        assert!(rule.contains(&url), "{name} does not link to its page");
        assert!(list.contains(&format!("[{name}]({name}.md)")), "docs/runbook/README.md lacks {name}");
    }
    assert_eq!(names.len(), 1, "pages without an alert: {names:?}");
}

#[test]
fn the_readme_fits_on_three_screens() {
    let bytes = fs::metadata("README.md").unwrap().len();
    assert!(bytes <= 10_000, "README.md has {bytes} bytes");
}
