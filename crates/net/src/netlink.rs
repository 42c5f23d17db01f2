//! One conversation with the kernel over rtnetlink: a request, and all of its answers.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;

/// Messages and their parts begin at multiples of this.
const ALIGNMENT: usize = 4;

/// A socket in the network namespace that this thread was in when it was opened.
#[derive(Debug)]
pub(crate) struct Netlink(Socket);

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// One that asks nothing, and hears what the kernel tells of changes to some groups of things (`enum
    /// rtnetlink_groups`).
    pub(crate) fn hearing(groups: &[u32]) -> io::Result<Self> {
        let hearing = Self::open()?;
        groups.iter().try_for_each(|group| hearing.0.add_membership(*group))?;
        hearing.0.set_non_blocking(true)?;
        Ok(hearing)
    }

    /// What has been told since, the oldest first. ENOBUFS where that was more than is kept.
    pub(crate) fn heard(&self) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut told = Vec::new();
        loop {
            match self.0.recv_from_full() {
                Ok((received, _)) => read_all(&received, &mut told).map(drop)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(told),
                Err(error) => return Err(error),
            }
        }
    }

    /// Everything of a kind.
    pub(crate) fn dump(&self, request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(request, NLM_F_DUMP)
    }

    /// A change; `flags` beside the usual ones.
    pub(crate) fn change(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(request, NLM_F_ACK | flags).map(drop)
    }

    fn ask(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (received, _) = self.0.recv_from_full()?;
            if read_all(&received, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Reads a datagram of messages; `true` where the last answer was among them.
fn read_all(mut bytes: &[u8], answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let length = usize::try_from(message.header.length).unwrap_or(usize::MAX).next_multiple_of(ALIGNMENT);
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => {
                return if error.raw_code() == 0 { Ok(true) } else { Err(error.to_io()) };
            }
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            _ => {}
        }
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(false)
}
