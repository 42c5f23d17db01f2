//! SECURITY.md names for each thing that somebody must not get the test that tries it, and
//! docs/transactions-guarantees.md for each guarantee the test that shows it. The names are held against the list of
//! tests.

#[cfg(test)]
mod tests {
    use crate::area;

    /// A table whose last column names tests.
    struct Table {
        page: &'static str,
        /// What it stands below.
        heading: &'static str,
        /// How its first row begins, which says what the columns are.
        columns: &'static str,
        /// It has at least so many rows.
        rows: usize,
    }

    const TABLES: [Table; 2] = [
        Table {
            page: include_str!("../../SECURITY.md"),
            heading: "## Who must not get what",
            columns: "| who",
            rows: 20,
        },
        Table {
            page: include_str!("../../docs/transactions-guarantees.md"),
            heading: "## What is guaranteed",
            columns: "| what is guaranteed",
            rows: 35,
        },
    ];

    /// Fuzz targets, which rows may name too.
    const TARGETS: &str = include_str!("../../fuzz/src/lib.rs");

    /// The words in backquotes of a table's row, in its last column.
    fn tests_of(row: &str) -> Vec<&str> {
        let last = row.trim().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        last.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect()
    }

    impl Table {
        fn rows(&self) -> impl Iterator<Item = &'static str> {
            let from = self.page.find(self.heading).expect("the page has the table");
            let rest = self.page[from..].lines().skip(1).take_while(|line| !line.starts_with("## "));
            rest.filter(|line| line.starts_with("| ") && !line.starts_with(self.columns))
        }
    }

    #[test]
    fn every_row_names_a_test() {
        for table in &TABLES {
            let silent: Vec<&str> = table.rows().filter(|row| tests_of(row).is_empty()).collect();
            assert!(table.rows().count() >= table.rows, "the table below '{}' was not found", table.heading);
            assert!(silent.is_empty(), "rows without a test: {silent:#?}");
        }
    }

    #[test]
    fn every_test_that_is_named_exists() {
        let names: Vec<&str> = area::all().map(|case| case.name).collect();
        let is_target = |word: &str| {
            word.strip_prefix("fuzz::").is_some_and(|name| TARGETS.contains(&format!("target(\"{name}\",")))
        };
        let is_there = |word: &str| {
            is_target(word)
                || names.iter().any(|name| *name == word || (word.ends_with("::") && name.starts_with(word)))
        };
        let lost: Vec<&str> =
            TABLES.iter().flat_map(Table::rows).flat_map(tests_of).filter(|word| !is_there(word)).collect();
        assert!(lost.is_empty(), "tests that are named and do not exist: {lost:#?}");
    }
}
