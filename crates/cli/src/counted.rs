//! A number with the word for what is counted.

use std::fmt::Display;

/// `1 process`, `2 processes`.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let word = if number == N::from(1) { one } else { many };
    format!("{number} {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_from_more() {
        assert_eq!(
            [0_i64, 1, 2].map(|number| counted(number, "process", "processes")),
            ["0 processes", "1 process", "2 processes"]
        );
    }
}
