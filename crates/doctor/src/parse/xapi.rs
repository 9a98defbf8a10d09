//! `xe ...-list`: records of XAPI's database, `NAME ( RW): VALUE` a line, empty lines between.

use std::collections::BTreeMap;

use crate::evidence::{Gap, Text};

/// What XAPI has instead of a value.
const ABSENT: &str = "<not in database>";

/// Records in the order that the tool prints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Each by parameter: its value, and its line.
    pub all: Vec<BTreeMap<String, (String, usize)>>,
}

impl Records {
    /// Reads the output of `xe vm-list` and the like.
    pub fn parse(text: &Text) -> Result<Records, Gap> {
        let mut all = Vec::new();
        let mut record = BTreeMap::new();
        for (line, row) in text.lines() {
            if row.trim().is_empty() {
                all.push(std::mem::take(&mut record));
                continue;
            }
            let read = row.split_once(':').and_then(|(head, value)| {
                let (name, _access) = head.trim_end().strip_suffix(')')?.rsplit_once('(')?;
                Some((name.trim(), value))
            });
            let (name, value) =
                read.ok_or_else(|| text.unreadable(Some(line), "expected NAME ( RW): VALUE"))?;
            let value = value.trim();
            let value = if value == ABSENT { "" } else { value };
            record.insert(name.to_owned(), (value.to_owned(), line));
        }
        all.push(record);
        all.retain(|record| !record.is_empty());
        Ok(Records { all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parted_by_empty_lines() {
        let text = "uuid ( RO)                : 7d1a\n     name-label ( RW): a (b): c\n\n\n\
                    uuid ( RO)        : 8e2b\nPV-drivers-version (MRO): <not in database>\n";
        let read = Records::parse(&Text::new("xe vm-list", text)).expect("sound");
        assert_eq!(read.all.len(), 2);
        assert_eq!(read.all[0]["name-label"].0, "a (b): c");
        assert_eq!(read.all[1]["PV-drivers-version"].0, "");
    }
}
