//! One name, one type: a name that two modules of `crates/*/src` give to a type is refused, with the places.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const KINDS: [&str; 4] = ["struct", "enum", "trait", "type"];

pub(crate) fn check() -> Result<(), String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").join("crates");
    let mut files = Vec::new();
    for folder in entries(&crates)? {
        rust_files(&folder.join("src"), &mut files)?;
    }
    let mut sources = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let shown = file.strip_prefix(&crates).unwrap_or(&file).display().to_string();
        sources.push((shown, text));
    }
    let twice = defined_twice(&sources);
    if twice.is_empty() { Ok(()) } else { Err(format!("types that share a name:\n{}", twice.join("\n"))) }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// All but `tests.rs`, which is a module for tests.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    for path in entries(folder)? {
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// One line for each name that is defined more than once.
fn defined_twice(sources: &[(String, String)]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, text) in sources {
        for (number, name) in defined(text) {
            places.entry(name).or_default().push(format!("{file}:{number}"));
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice.map(|(name, places)| format!("  {name}: {}", places.join(", "))).collect()
}

/// The types of a module, with the numbers of their lines. rustfmt indents what is inside of `mod tests { … }`, of
/// functions and of impls, so a definition of the module begins its line.
fn defined(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut after_cfg_test = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let is_for_tests = after_cfg_test;
        after_cfg_test = line.starts_with("#[cfg(test)]") || (is_for_tests && line.starts_with("#["));
        if is_for_tests || !line.starts_with(|first: char| first.is_alphabetic()) {
            return None;
        }
        let mut words = line.split([' ', '<', '(', ';', ':', '{', '=']).filter(|word| !word.is_empty());
        let mut word = words.next()?;
        while matches!(word, "pub" | "crate)" | "super)" | "unsafe") {
            word = words.next()?;
        }
        KINDS.contains(&word).then(|| words.next()).flatten().map(|name| (number, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_share_a_name_are_named_with_their_places() {
        let sources = [
            ("a/src/lib.rs", "pub struct Claim<'a> {\n}\npub(crate) enum Pick {\n"),
            ("a/src/b.rs", "// struct Pick\ntype Claim = u8;\nimpl X {\n    type Pick = u8;\n}\n"),
            ("c/src/lib.rs", "#[cfg(test)]\nmod tests {\n    struct Pick;\n}\n"),
            (
                "c/src/d.rs",
                "#[cfg(test)]\n#[derive(Debug)]\nstruct Pick;\nfn f() {}\npub(super) trait Want: Send {}\n",
            ),
            ("c/src/e.rs", "struct Want;\n"),
        ];
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let expected = ["  Claim: a/src/lib.rs:1, a/src/b.rs:2", "  Want: c/src/d.rs:5, c/src/e.rs:1"];
        assert_eq!(defined_twice(&sources), expected);
    }
}
