//! The payloads of requests and replies: strings that end in NUL, decimal numbers.

use ringway_wire::DomId;
use ringway_wire::xenstore::Errno;

/// A payload of strings, each terminated by a NUL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strings<'a> {
    payload: &'a [u8],
}

impl<'a> Strings<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Strings<'a> {
        Strings { payload }
    }

    /// All of them.
    ///
    /// # Errors
    /// `EINVAL` if the last one is not terminated.
    pub(crate) fn all(self) -> Result<impl Iterator<Item = &'a [u8]>, Errno> {
        let body = self.payload.strip_suffix(b"\0").ok_or(Errno::Inval)?;
        Ok(body.split(|byte| *byte == 0))
    }

    /// All of them, if there are `N`.
    ///
    /// # Errors
    /// `EINVAL` if they are not.
    pub(crate) fn exactly<const N: usize>(self) -> Result<[&'a [u8]; N], Errno> {
        let mut strings = self.all()?;
        let mut found: [&[u8]; N] = [&[]; N];
        for slot in &mut found {
            *slot = strings.next().ok_or(Errno::Inval)?;
        }
        if strings.next().is_some() { Err(Errno::Inval) } else { Ok(found) }
    }

    /// The one string.
    ///
    /// # Errors
    /// `EINVAL` if there is not exactly one.
    pub(crate) fn only(self) -> Result<&'a [u8], Errno> {
        self.exactly().map(|[only]| only)
    }

    /// A string, followed by arbitrary bytes.
    ///
    /// # Errors
    /// `EINVAL` if the string is not terminated.
    pub(crate) fn first_and_rest(self) -> Result<(&'a [u8], &'a [u8]), Errno> {
        let end = self.payload.iter().position(|byte| *byte == 0).ok_or(Errno::Inval)?;
        let (first, rest) = self.payload.split_at(end);
        Ok((first, rest.get(1..).unwrap_or_default()))
    }
}

/// A decimal number.
///
/// # Errors
/// `EINVAL` if it is not one, or too large.
pub(crate) fn number<T: std::str::FromStr>(text: &[u8]) -> Result<T, Errno> {
    let text = std::str::from_utf8(text).map_err(|_| Errno::Inval)?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Errno::Inval);
    }
    text.parse().map_err(|_| Errno::Inval)
}

/// A domain number.
///
/// # Errors
/// As [`number`].
pub(crate) fn domain(text: &[u8]) -> Result<DomId, Errno> {
    number(text).map(DomId)
}

/// A reply of one string.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// The reply to a request without a result.
pub(crate) fn ok() -> Vec<u8> {
    string("OK")
}
