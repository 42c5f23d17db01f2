//! `-p`, as docker and podman write it: a port, or a range of ports that lead to as many.

use pando_api::Publication;

/// The ports that one `-p` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publications(pub(crate) Vec<Publication>);

/// The most ports of a range: each is a rule of the host's.
const MOST: u16 = 1024;

/// Reads `[[IP:]HOST[-HOST]:]GUEST[-GUEST][/udp]`.
pub(crate) fn publications(text: &str) -> Result<Publications, String> {
    let plain = || text.parse().map(|one| Publications(vec![one])).map_err(|error| format!("{error}"));
    let (rest, protocol) = text.rsplit_once('/').map_or((text, ""), |(rest, protocol)| (rest, protocol));
    let (hosts, guests) = rest.rsplit_once(':').map_or(("", rest), |(hosts, guests)| (hosts, guests));
    let (ip, hosts) = match hosts.rsplit_once(':') {
        Some((ip, hosts)) => (format!("{ip}:"), hosts),
        None => (String::new(), hosts),
    };
    let range = |word: &str| {
        let (first, last) = word.split_once('-')?;
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        (first > 0 && first <= last).then_some((first, last))
    };
    if !guests.contains('-') && !hosts.contains('-') {
        return plain();
    }
    let wrong = |why: &str| Err(format!("ports '{text}' cannot be published: {why}; for example 8000-8009:80-89"));
    let Some((first, last)) = range(guests) else { return wrong("the guest's are no range of ports") };
    if last - first >= MOST {
        return wrong("a range has 1024 ports at most");
    }
    let host = match range(hosts) {
        Some((host, to)) if to - host == last - first => Some(host),
        None if hosts.is_empty() => None,
        _ => return wrong("there have to be as many of the host's"),
    };
    let slash = if protocol.is_empty() { "" } else { "/" };
    let one = |offset: u16| {
        let host = host.map_or_else(String::new, |host| (host + offset).to_string());
        let colon = if host.is_empty() && ip.is_empty() { "" } else { ":" };
        format!("{ip}{host}{colon}{}{slash}{protocol}", first + offset).parse()
    };
    (0..=last - first).map(one).collect::<Result<_, _>>().map(Publications).map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_as_many_ports() {
        let read = |text: &str| {
            publications(text).map(|all| all.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(read("8080:80").as_deref(), Ok("8080:80"));
        assert_eq!(read("80").as_deref(), Ok("80"));
        assert_eq!(read("8000-8002:80-82/udp").as_deref(), Ok("8000:80/udp 8001:81/udp 8002:82/udp"));
        assert_eq!(read("80-81").as_deref(), Ok("80 81"));
        assert_eq!(read("[fd00::1]:8000-8001:80-81").as_deref(), Ok("[fd00::1]:8000:80 [fd00::1]:8001:81"));
        for wrong in ["8000-8002:80-81", "8000-8001:80", "81-80", "1-60000", "a-b", "8000-8001:80-81/icmp", "0-1"] {
            assert!(read(wrong).unwrap_err().contains("for example"), "{wrong}");
        }
    }
}
