//! Placeholder, replaced by its first real version.
