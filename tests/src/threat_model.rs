//! SECURITY.md names for each thing that somebody must not get the test that tries it. The names are held against the list of tests, and of fuzz targets.

#[cfg(test)]
mod tests {
    use crate::area;

    const PAGE: &str = include_str!("../../SECURITY.md");
    const TARGETS: &str = include_str!("../../fuzz/src/lib.rs");

    /// The words in backquotes of a table's row, in its last column.
    fn tests_of(row: &str) -> Vec<&str> {
        let last = row.trim().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        last.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect()
    }

    fn rows() -> impl Iterator<Item = &'static str> {
        let from = PAGE.find("## Who must not get what").expect("the page has the table");
        let rest = PAGE[from..].lines().skip(1).take_while(|line| !line.starts_with("## "));
        rest.filter(|line| line.starts_with("| ") && !line.starts_with("| who") && !line.starts_with("|---"))
    }

    #[test]
    fn every_row_names_a_test() {
        let silent: Vec<&str> = rows().filter(|row| tests_of(row).is_empty()).collect();
        assert!(rows().count() > 20, "the table was not found");
        assert!(silent.is_empty(), "rows without a test: {silent:#?}");
    }

    #[test]
    fn every_test_that_is_named_exists() {
        let names: Vec<&str> = area::all().map(|case| case.name).collect();
        let is_target = |word: &str| {
            word.strip_prefix("fuzz::").is_some_and(|name| TARGETS.contains(&format!("target(\"{name}\",")))
        };
        let lost: Vec<&str> = rows()
            .flat_map(tests_of)
            .filter(|word| !is_target(word))
            .filter(|word| !names.iter().any(|name| name == word || (word.ends_with("::") && name.starts_with(word))))
            .collect();
        assert!(lost.is_empty(), "tests that are named and do not exist: {lost:#?}");
    }
}
