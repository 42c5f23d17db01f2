//! The call that a plain line means, as varlink writes it: JSON and a closing NUL.

use crate::line::Line;

/// The error for a call that does not fit into its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// A call, in bytes of its caller's: there is no heap.
#[derive(Debug)]
pub struct Request<'a> {
    space: &'a mut [u8],
    length: usize,
}

impl<'a> Request<'a> {
    /// Writes the call for a line into `space`.
    pub fn write<W: AsRef<str>>(line: &Line<'_, W>, space: &'a mut [u8]) -> Result<&'a [u8], TooLong> {
        let mut request = Self { space, length: 0 };
        match line {
            Line::Run { options, command } => {
                request.plain(r#"{"method":"org.pando.Guests.Run","parameters":{"#)?;
                request.member("name", options.name)?;
                request.member("source", options.source)?;
                request.plain(r#""spec":{"#)?;
                request.member("network", options.network)?;
                request.plain(r#""command":["#)?;
                request.words(command)?;
                request.plain(r#"]},"process":{}},"more":true}"#)?;
            }
            Line::Clone { image, name } => {
                request.plain(r#"{"method":"org.pando.Guests.Clone","parameters":{"image":"#)?;
                request.string(image.as_ref())?;
                request.plain(r#","names":["#)?;
                request.string(name.as_ref())?;
                request.plain("]}}")?;
            }
            Line::Transaction { .. } => request.plain(r#"{"method":"org.pando.Guests.TakeSpare","parameters":{}}"#)?,
            Line::Exec { name, command } => {
                request.plain(r#"{"method":"org.pando.Guests.Exec","parameters":{"name":"#)?;
                request.string(name.as_ref())?;
                request.plain(r#","process":{"command":["#)?;
                request.words(command)?;
                request.plain(r#"]}},"more":true}"#)?;
            }
        }
        request.byte(0)?;
        let Self { space, length } = request;
        Ok(&space[..length])
    }

    /// A member of an object before others, if it is there.
    fn member<W: AsRef<str>>(&mut self, name: &str, value: Option<&W>) -> Result<(), TooLong> {
        let Some(value) = value else { return Ok(()) };
        self.string(name)?;
        self.byte(b':')?;
        self.string(value.as_ref())?;
        self.byte(b',')
    }

    fn words<W: AsRef<str>>(&mut self, words: &[W]) -> Result<(), TooLong> {
        for (number, word) in words.iter().enumerate() {
            if number > 0 {
                self.byte(b',')?;
            }
            self.string(word.as_ref())?;
        }
        Ok(())
    }

    /// A string of JSON (RFC 8259, section 7).
    fn string(&mut self, text: &str) -> Result<(), TooLong> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.byte(b'"')?;
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => {
                    self.byte(b'\\')?;
                    self.byte(byte)?;
                }
                0..0x20 => {
                    self.plain("\\u00")?;
                    self.byte(DIGITS[usize::from(byte >> 4)])?;
                    self.byte(DIGITS[usize::from(byte & 15)])?;
                }
                _ => self.byte(byte)?,
            }
        }
        self.byte(b'"')
    }

    fn plain(&mut self, text: &str) -> Result<(), TooLong> {
        text.bytes().try_for_each(|byte| self.byte(byte))
    }

    fn byte(&mut self, byte: u8) -> Result<(), TooLong> {
        *self.space.get_mut(self.length).ok_or(TooLong)? = byte;
        self.length += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted() {
        let mut space = [0; 200];
        let line = Line::Exec { name: &"web", command: &["a\"\\", "\u{1}\n", "ü"] };
        let written = Request::write(&line, &mut space).unwrap();
        let expected = "{\"method\":\"org.pando.Guests.Exec\",\"parameters\":{\"name\":\"web\",\"process\":{\"command\":[\"a\\\"\\\\\",\"\\u0001\\u000a\",\"ü\"]}},\"more\":true}\0";
        assert_eq!(std::str::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn what_does_not_fit_is_not_cut() {
        let mut space = [0; 200];
        let options = crate::Options { name: Some(&"a"), source: None, network: None };
        let line = Line::Run { options, command: &["x"] };
        let length = Request::write(&line, &mut space).unwrap().len();
        assert_eq!(Request::write(&line, &mut space[..length - 1]), Err(TooLong));
        assert!(Request::write(&line, &mut space[..length]).is_ok());
    }
}
