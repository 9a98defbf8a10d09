//! Shared by the targets: an input that is read value by value, a second implementation of
//! checksums, and a machine with a guest and a host.

pub mod frames;
pub mod machine;

use std::str::from_utf8;

/// The fuzzer's bytes. Reads beyond the end return zero or nothing, so each input is valid and a
/// longer one only adds to it.
#[derive(Debug, Clone)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes, little end first.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes, little end first.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// A boolean, from one bit of the next byte.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// A number from 0, below `count`, which must not be 0.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.u16()) % count
    }

    /// One of several values.
    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// The next `N` bytes, padded with zeros.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A text of up to 255 bytes, preceded by its length. It ends at the first invalid UTF-8.
    pub fn text(&mut self) -> &'a str {
        let len = usize::from(self.u8());
        let bytes = self.bytes(len);
        from_utf8(bytes).unwrap_or_else(|error| {
            from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to there")
        })
    }

    /// The remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }
}
