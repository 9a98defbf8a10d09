//! Links in an archive: in a sos report, `/proc/net` and the interfaces of `/sys/class/net` are
//! links.

use std::collections::BTreeMap;

use super::super::source::PIECES_MAX;

/// The target of a link at `path`, relative to the root of the archive; `None` if it is outside.
pub(super) fn target(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        // An absolute target starts at the saved host's root, or at the archive's only folder.
        Some(_) => Vec::new(),
        None => path.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Adds the files behind links under the links' names, as long as bytes are `left`. A link to a
/// path behind another link is not followed.
pub(super) fn follow(
    pieces: &mut BTreeMap<String, String>,
    links: &BTreeMap<String, String>,
    mut left: u64,
) {
    let mut more: BTreeMap<String, String> = BTreeMap::new();
    for (link, target) in links {
        let folder = format!("{target}/");
        // A link to a folder that contains it would never end.
        if target.is_empty() || link.starts_with(&folder) {
            continue;
        }
        let file = pieces.get_key_value(target);
        let below =
            pieces.range(folder.clone()..).take_while(|(path, _)| path.starts_with(&folder));
        for (path, text) in file.into_iter().chain(below) {
            let name = format!("{link}{}", &path[target.len()..]);
            let len = u64::try_from(text.len()).unwrap_or(u64::MAX);
            let has_room = more.len() < PIECES_MAX && len <= left;
            if has_room && !pieces.contains_key(&name) {
                left -= len;
                more.insert(name, text.clone());
            }
        }
    }
    pieces.extend(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_link_has_its_name_as_well() {
        assert_eq!(target("h/proc/net", "self/net").as_deref(), Some("h/proc/self/net"));
        assert_eq!(target("h/sys/a", "../x/y").as_deref(), Some("h/x/y"));
        assert_eq!(target("h/a", "../../x"), None);
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let mut pieces: BTreeMap<String, String> =
            [("proc/self/net/dev", "dev\n"), ("a/b", "b\n")].map(own).into();
        let links = [("proc/net", "proc/self/net"), ("a/loop", "a"), ("c", "a/b")].map(own).into();
        follow(&mut pieces, &links, 100);
        assert_eq!(pieces.get("proc/net/dev").map(String::as_str), Some("dev\n"));
        assert_eq!(pieces.get("c").map(String::as_str), Some("b\n"));
        assert_eq!(pieces.len(), 4);
        follow(&mut pieces, &[own(("d", "a"))].into(), 1);
        assert_eq!(pieces.len(), 4, "no room");
    }
}
