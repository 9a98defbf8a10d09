//! Who may read and write a node.

use std::sync::Arc;

use ringway_wire::DomId;
use ringway_wire::xenstore::Errno;

/// What one domain may do with a node (`n`, `r`, `w`, `b` on the wire).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Neither read nor write.
    None,
    /// Read value and children.
    Read,
    /// Write the value and make or remove children.
    Write,
    /// Both.
    Both,
}

impl Rights {
    /// Whether these rights include all of `wanted`.
    pub fn include(self, wanted: Rights) -> bool {
        self == Rights::Both || self == wanted || wanted == Rights::None
    }

    fn letter(self) -> char {
        match self {
            Rights::None => 'n',
            Rights::Read => 'r',
            Rights::Write => 'w',
            Rights::Both => 'b',
        }
    }

    fn from_letter(letter: char) -> Option<Rights> {
        match letter {
            'n' => Some(Rights::None),
            'r' => Some(Rights::Read),
            'w' => Some(Rights::Write),
            'b' => Some(Rights::Both),
            _ => None,
        }
    }
}

/// The permissions of a node: its owner, the rights of all other domains, and exceptions.
///
/// The owner and domain 0 may do everything. On the wire, the first entry of the list names the
/// owner; its letter gives the rights of domains without their own entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    owner: DomId,
    others: Rights,
    /// Shared: each change of a node carries a copy, which selects the watches that may see it.
    exceptions: Arc<[(DomId, Rights)]>,
}

impl Permissions {
    /// A node of `owner` on which other domains have the rights `others`.
    pub fn new(owner: DomId, others: Rights) -> Permissions {
        Permissions { owner, others, exceptions: Arc::default() }
    }

    /// Adds an exception for one domain.
    #[must_use]
    pub fn with(mut self, domain: DomId, rights: Rights) -> Permissions {
        self.exceptions = self.exceptions.iter().copied().chain([(domain, rights)]).collect();
        self
    }

    /// The domain that owns the node, and whose quota it counts against.
    pub fn owner(&self) -> DomId {
        self.owner
    }

    /// The rights of `domain`. The first entry that names it counts.
    pub fn rights_of(&self, domain: DomId) -> Rights {
        if domain == DomId(0) || domain == self.owner {
            return Rights::Both;
        }
        self.exceptions
            .iter()
            .find(|(who, _)| *who == domain)
            .map_or(self.others, |(_, rights)| *rights)
    }

    /// Entries on the wire, the owner's included.
    pub(crate) fn entry_count(&self) -> usize {
        1 + self.exceptions.len()
    }

    /// The initial permissions of a node that `creator` makes below one with these permissions: the
    /// same, except that a guest owns what it makes.
    pub(crate) fn inherited_by(&self, creator: DomId) -> Permissions {
        let owner = if creator == DomId(0) { self.owner } else { creator };
        Permissions { owner, ..self.clone() }
    }

    /// Removes the rights of a domain that is gone, since its number may be reused. Returns `None`
    /// if there were none.
    pub(crate) fn without(&self, gone: DomId) -> Option<Permissions> {
        let is_named = self.owner == gone || self.exceptions.iter().any(|(who, _)| *who == gone);
        is_named.then(|| {
            let owner = if self.owner == gone { DomId(0) } else { self.owner };
            let exceptions = self.exceptions.iter().copied().filter(|(who, _)| *who != gone);
            Permissions { owner, others: self.others, exceptions: exceptions.collect() }
        })
    }

    /// Reads wire entries such as `n0`, `r7`.
    ///
    /// # Errors
    /// `EINVAL` if there is no entry, or an invalid one.
    pub(crate) fn parse<'a>(
        mut entries: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Permissions, Errno> {
        let (owner, others) = parse_entry(entries.next().ok_or(Errno::Inval)?)?;
        let exceptions = entries.map(parse_entry).collect::<Result<_, _>>()?;
        Ok(Permissions { owner, others, exceptions })
    }

    /// The wire form: entries that each end in a NUL.
    pub(crate) fn to_wire(&self) -> Vec<u8> {
        let entries =
            std::iter::once((self.owner, self.others)).chain(self.exceptions.iter().copied());
        let entries = entries.map(|(domain, rights)| format!("{}{domain}\0", rights.letter()));
        entries.collect::<String>().into_bytes()
    }
}

fn parse_entry(entry: &[u8]) -> Result<(DomId, Rights), Errno> {
    let text = std::str::from_utf8(entry).map_err(|_| Errno::Inval)?;
    let mut letters = text.chars();
    let rights = letters.next().and_then(Rights::from_letter).ok_or(Errno::Inval)?;
    let digits = letters.as_str();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Errno::Inval);
    }
    let domain = digits.parse().map_err(|_| Errno::Inval)?;
    Ok((DomId(domain), rights))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Permissions, Errno> {
        Permissions::parse(text.split(',').map(str::as_bytes))
    }

    #[test]
    fn the_owner_and_domain_0_may_do_everything() {
        let permissions = parse("n3,r7,w8").expect("the entries are valid");
        assert_eq!(permissions.rights_of(DomId(0)), Rights::Both);
        assert_eq!(permissions.rights_of(DomId(3)), Rights::Both);
        assert_eq!(permissions.rights_of(DomId(7)), Rights::Read);
        assert_eq!(permissions.rights_of(DomId(8)), Rights::Write);
        assert_eq!(permissions.rights_of(DomId(9)), Rights::None);
        assert_eq!(permissions.to_wire(), b"n3\0r7\0w8\0");
    }

    #[test]
    fn entries_that_are_not_a_letter_and_a_domain_are_refused() {
        for bad in ["", "n", "x0", "n-1", "n+1", "n65536", "n0,", "n0,r", "0", "é1"] {
            assert_eq!(parse(bad), Err(Errno::Inval), "{bad:?}");
        }
    }

    #[test]
    fn a_guest_owns_what_it_makes_and_domain_0_passes_ownership_on() {
        let parent = parse("n3,r7").expect("the entries are valid");
        assert_eq!(parent.inherited_by(DomId(0)), parent);
        assert_eq!(Ok(parent.inherited_by(DomId(7))), parse("n7,r7"));
    }

    #[test]
    fn a_destroyed_domain_keeps_no_rights() {
        let permissions = parse("n3,r7,w8").expect("the entries are valid");
        assert_eq!(permissions.without(DomId(7)), parse("n3,w8").ok());
        assert_eq!(permissions.without(DomId(9)), None);
    }
}
