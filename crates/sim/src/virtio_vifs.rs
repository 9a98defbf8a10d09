//! All virtio vifs of a world.

use crate::socket::Opener;

/// All virtio vifs, by their numbers.
#[derive(Default)]
pub(crate) struct Virtio {
    pub(crate) names: Vec<String>,
    pub(crate) openers: Vec<Opener>,
}
