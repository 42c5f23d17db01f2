//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::probe::btf;
use crate::{
    file::fanotify, filesystem::swap_files, memory, mount, network::netlink_dump, process, socket, socket::unix_diag,
};

/// Texts of /proc: names in them are any bytes that their owners chose.
pub fn proc_texts(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n').count();
    assert!(mount::entries(data).count() <= lines && swap_files::parse(data).len() <= lines);
    assert!(memory::map::listed(1, data).len() <= lines);
    let text = String::from_utf8_lossy(data);
    for number in 0..60 {
        assert!(process::field(&text, number).is_none_or(|word| !word.contains([' ', ')'])));
    }
    assert!(!process::printable(&text).contains(char::is_control));
}

/// What the kernel says in messages: of sockets, of what was opened, of descriptors, of its own types.
pub fn messages(data: &[u8]) {
    let mut bodies = 0;
    let _ = netlink_dump::parse(data, &mut |body| {
        bodies += 1;
        let _ = (unix_diag::entry(body), netlink_dump::attributes(body, 4).count());
    });
    assert!(bodies <= data.len());
    let mut rest = data;
    while let Some(event) = fanotify::next_event(&mut rest) {
        let _ = fanotify::opening(event);
    }
    let _ = (socket::peek::numbers(data), btf::function(data, "f"));
}
