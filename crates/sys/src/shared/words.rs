//! Shared memory as words, of which there is a known number.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{SharedPages, outside};

const WORD: usize = size_of::<u32>();

/// `LEN` words of 32 bits that a peer may access at any moment, as [`SharedPages`].
///
/// Its length and alignment are checked once. Each access checks the number of the word, and the
/// compiler leaves that out where it knows that the number is below `LEN`.
#[derive(Debug, Clone)]
pub struct SharedWords<const LEN: usize> {
    pages: SharedPages,
}

impl<const LEN: usize> SharedWords<LEN> {
    /// The first words of this memory.
    ///
    /// # Panics
    /// If it is shorter, or not aligned for words.
    pub fn new(pages: SharedPages) -> SharedWords<LEN> {
        assert!(pages.len() / WORD >= LEN, "{} bytes for {LEN} words", pages.len());
        assert!(pages.is_aligned_to(align_of::<u32>()), "shared words are aligned");
        SharedWords { pages }
    }

    /// Loads a word.
    ///
    /// # Panics
    /// If there is no such word; so do the other functions.
    #[inline]
    pub fn load(&self, number: usize, order: Ordering) -> u32 {
        self.word(number).load(order)
    }

    /// Stores a word.
    #[inline]
    pub fn store(&self, number: usize, value: u32, order: Ordering) {
        self.word(number).store(value, order);
    }

    /// Replaces a word that is still `current`.
    ///
    /// # Errors
    /// The word found, if it was not `current`.
    #[inline]
    pub fn compare_exchange(&self, number: usize, current: u32, new: u32) -> Result<u32, u32> {
        self.word(number).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed)
    }

    /// Clears the bits of a word that are not in `mask`, and returns its previous value.
    #[inline]
    pub fn fetch_and(&self, number: usize, mask: u32) -> u32 {
        self.word(number).fetch_and(mask, Ordering::AcqRel)
    }

    #[inline]
    fn word(&self, number: usize) -> &AtomicU32 {
        if number >= LEN {
            outside(number, 1, LEN);
        }
        let word = self.pages.base.as_ptr().cast::<u32>().wrapping_add(number);
        // SAFETY: `new` has checked that there are so many words, and that they are aligned; the
        // memory outlives `&self`; every access to such words, ours and the peer's, is atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> SharedWords<3> {
        SharedWords::new(SharedPages::zeroed(3 * WORD).expect("there is memory"))
    }

    #[test]
    fn a_word_changes_alone() {
        let words = words();
        words.store(1, 6, Ordering::Relaxed);
        assert_eq!(words.compare_exchange(1, 5, 7), Err(6));
        assert_eq!(words.compare_exchange(1, 6, 7), Ok(6));
        assert_eq!(words.fetch_and(1, 3), 7);
        assert_eq!([0, 1, 2].map(|number| words.load(number, Ordering::Relaxed)), [0, 3, 0]);
    }

    #[test]
    #[should_panic(expected = "3+1 is outside 3")]
    fn there_is_no_word_behind_the_last() {
        words().load(3, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "8 bytes for 3 words")]
    fn words_are_all_there() {
        SharedWords::<3>::new(SharedPages::zeroed(2 * WORD).expect("there is memory"));
    }
}
