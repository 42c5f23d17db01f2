//! What a fuzzer calls. It takes any bytes, and panics where what is promised of them is broken.

use crate::{oom, quantity};

/// Quantities as users and settings have them: what is read is the same when it is written again. And the
/// kernel's log, in which programs and groups have the names that their owners chose.
pub fn quantities(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(bytes) = quantity::size(&text) {
        let _ = quantity::show_size(bytes);
    }
    if let Ok(list) = quantity::list(&text) {
        assert!(list.len() < 100_000);
        assert_eq!(quantity::list(&quantity::show_list(&list)).as_ref(), Ok(&list));
    }
    if let Ok(part) = quantity::part(&text) {
        assert!(part.is_finite() && part >= 0.0);
    }
    let _ = (quantity::processors(&text), quantity::whole(&text, 1, 9), quantity::count(&text, 1));
    let _ = oom::victim(&text);
}
