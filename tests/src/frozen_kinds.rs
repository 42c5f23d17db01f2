//! docs/clones.md names for each kind of thing that processes have the test that tries it in a clone. The names are
//! held against the list of tests.

#[cfg(test)]
mod tests {
    use crate::area;

    const PAGE: &str = include_str!("../../docs/clones.md");

    #[test]
    fn every_test_that_is_named_exists() {
        let table =
            PAGE.split_once("<!-- kinds: begin -->").and_then(|(_, rest)| rest.split_once("<!-- kinds: end -->"));
        let rows: Vec<_> = table.expect("the page has the table").0.lines().filter(|line| line.contains('`')).collect();
        assert!(rows.len() > 80, "{rows:?}");
        let names: Vec<&str> = area::all().map(|case| case.name).collect();
        let named = rows.iter().filter_map(|row| row.trim_end().strip_suffix("` |")?.rsplit('`').next());
        let exists =
            |word: &str| names.iter().any(|name| *name == word || word.ends_with("::") && name.starts_with(word));
        let lost: Vec<_> = named.filter(|word| !exists(word)).collect();
        assert!(lost.is_empty(), "tests that are named and do not exist: {lost:#?}");
    }
}
