//! What checks say: explanations, causes, advice and gains, from the `SUBJECT.md` of each check.
//!
//! `build.rs` makes a module for each check. `EXPLANATION` is what `doctor explain` shows; below
//! `In findings`, each `name: text` becomes a function `name`, which takes what its
//! `{placeholders}` stand for, in their order. A text that no check uses is a warning of the
//! compiler, a name that is not there an error.

include!(concat!(env!("OUT_DIR"), "/texts.rs"));
