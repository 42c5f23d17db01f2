//! An exported image: a name and its parts, in portions. The daemon writes it; the format is described there.
//!
//! The last part is its signature, which is made when all others are written: by the command, which appends it as a
//! frame of its own.

use crate::failure::Failure;
use crate::serve::{End, Stop};
use crate::wire::{Message, Teller};
use std::cell::Cell;
use std::io::{self, Read, Write};

/// The bytes that an export begins with.
pub const EXPORT_GREETING: &[u8] = b"pando image export 2\n";

/// How one begins that was written before there were signatures.
const UNSIGNED_GREETING: &[u8; EXPORT_GREETING.len()] = b"pando image export 1\n";

/// The longest portion of a part.
pub const LONGEST_PORTION: usize = 1 << 20;

/// The number of the part that is the signature: what comes before it is signed. It is empty where nobody has signed.
pub const SIGNATURE_PART: u8 = 5;

/// Writes a part, and shows its bytes to `seen` as they pass.
///
/// # Errors
///
/// What reading and writing say.
pub fn write_part(stream: &mut impl Write, mut content: impl Read, mut seen: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; LONGEST_PORTION];
    loop {
        let length = match content.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        stream.write_all(&u32::try_from(length).map_err(io::Error::other)?.to_le_bytes())?;
        if length == 0 {
            return Ok(());
        }
        seen(&buffer[..length]);
        stream.write_all(&buffer[..length])?;
    }
}

/// What has to follow an export that was written without its last part.
///
/// # Errors
///
/// None but those of memory.
pub fn signature_frame(signature: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    write_part(&mut encoder, signature, |_| ())?;
    encoder.finish()
}

pub(crate) fn read<W: Write>(input: impl Read, position: &Cell<u64>, teller: &mut Teller<W>) -> Result<End, Stop> {
    let not_one = |_| Failure::NotAnExport;
    let mut stream = zstd::Decoder::new(input).map_err(not_one)?;
    stream.window_log_max(crate::compression::ZSTD_WINDOW).map_err(not_one)?;
    let mut greeting = [0; EXPORT_GREETING.len()];
    stream.read_exact(&mut greeting).map_err(not_one)?;
    let parts = match &greeting {
        UNSIGNED_GREETING => SIGNATURE_PART,
        greeting if *greeting == *EXPORT_GREETING => SIGNATURE_PART + 1,
        _ => return Err(Failure::NotAnExport.into()),
    };
    let mut buffer = vec![0; LONGEST_PORTION];
    for number in 0..parts {
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
