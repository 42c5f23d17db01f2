//! The kernel's release: for the few things that a kernel has from one on, and that cannot be tried.

/// The release's first two numbers (uname(2)). Zeros stand for what is missing.
pub fn release() -> (u32, u32) {
    numbers(&rustix::system::uname().release().to_string_lossy())
}

fn numbers(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers_count() {
        let told = ["6.18.3-amd64", "6.1.0-42", "7.0-rc1", "5", "none"].map(numbers);
        assert_eq!(told, [(6, 18), (6, 1), (7, 0), (5, 0), (0, 0)]);
    }
}
