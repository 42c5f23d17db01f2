//! An exported image: a name and its parts, in portions. Who writes it is the daemon; the format is described there.

use crate::failure::Failure;
use crate::serve::{End, Stop};
use crate::wire::{Message, Teller};
use std::cell::Cell;
use std::io::{self, Read, Write};

/// How an export begins.
pub const EXPORT_GREETING: &[u8] = b"pando image export 1\n";

/// The longest portion of a part.
pub const LONGEST_PORTION: usize = 1 << 20;

/// How many parts an export has, its name among them.
const PARTS: u8 = 5;

pub(crate) fn read<W: Write>(input: impl Read, position: &Cell<u64>, teller: &mut Teller<W>) -> Result<End, Stop> {
    let not_one = |_| Failure::NotAnExport;
    let mut stream = zstd::Decoder::new(input).map_err(not_one)?;
    stream.window_log_max(crate::compression::ZSTD_WINDOW).map_err(not_one)?;
    let mut greeting = [0; EXPORT_GREETING.len()];
    stream.read_exact(&mut greeting).map_err(not_one)?;
    if greeting != *EXPORT_GREETING {
        return Err(Failure::NotAnExport.into());
    }
    let mut buffer = vec![0; LONGEST_PORTION];
    for number in 0..PARTS {
        teller.say(position.get(), &Message::Part(number))?;
        while let Some(length) = portion(&mut stream, &mut buffer)? {
            teller.content(position.get(), &buffer[..length])?;
        }
    }
    if stream.read(&mut [0]).map_err(|error| damaged(&error.to_string()))? != 0 {
        return Err(damaged("there is more behind its end").into());
    }
    Ok(End { agrees: true })
}

fn damaged(what: &str) -> Failure {
    Failure::DamagedExport(what.to_owned())
}

/// The next portion's length; none at the end of a part.
fn portion(stream: &mut impl Read, buffer: &mut [u8]) -> Result<Option<usize>, Failure> {
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => damaged(&error.to_string()),
    };
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(cut)?;
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 {
        return Ok(None);
    }
    let portion = buffer.get_mut(..length).ok_or_else(|| damaged("a part of it is too long"))?;
    stream.read_exact(portion).map_err(cut)?;
    Ok(Some(length))
}
