//! The source of every decision of a world: a seed, or the bytes of a fuzzer.

/// A source of decisions. The same source produces the same world.
#[derive(Debug)]
pub struct Choices(Source);

#[derive(Debug)]
enum Source {
    Random(fastrand::Rng),
    /// The remaining bytes, the next one last. When they are used up, every decision is the first
    /// option.
    Bytes(Vec<u8>),
}

impl Choices {
    /// The decisions of a seed.
    pub fn from_seed(seed: u64) -> Choices {
        Choices(Source::Random(fastrand::Rng::with_seed(seed)))
    }

    /// The decisions encoded in bytes.
    pub fn from_bytes(bytes: &[u8]) -> Choices {
        Choices(Source::Bytes(bytes.iter().rev().copied().collect()))
    }

    /// Whether the source is used up, so that every decision is the first option.
    pub fn are_over(&self) -> bool {
        match &self.0 {
            Source::Random(_) => false,
            Source::Bytes(bytes) => bytes.is_empty(),
        }
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        match &mut self.0 {
            Source::Random(random) => random.usize(..end),
            Source::Bytes(bytes) => {
                let mut byte = || usize::from(bytes.pop().unwrap_or(0));
                let number =
                    if end <= 256 { byte() } else { (byte() << 16) | (byte() << 8) | byte() };
                number % end
            }
        }
    }

    /// A number from `least` to `most`.
    pub fn from_to(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True once in `times` on average.
    pub fn is_one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        match &mut self.0 {
            Source::Random(random) => random.u64(..),
            Source::Bytes(bytes) => {
                (0..4).fold(0, |sum, _| (sum << 8) | u64::from(bytes.pop().unwrap_or(0)))
            }
        }
    }

    /// Any number of 32 bits.
    pub fn number_32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.number().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Any number of 16 bits.
    pub fn number_16(&mut self) -> u16 {
        let [a, b, ..] = self.number().to_le_bytes();
        u16::from_le_bytes([a, b])
    }
}
