//! Rules of the wire, and the code and tests that implement them.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;

use crate::tree::Tree;

const RULES: &str = "docs/spec/netif.toml";
/// The prefix with which code and tests cite a rule.
const CITATION: &str = "//= netif.h:";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    id: String,
    sources: Vec<String>,
    section: String,
    claim: String,
}

/// Where a rule is cited.
#[derive(Default)]
struct Citations {
    code: usize,
    tests: usize,
}

/// Every rule without code or test, and every citation of no rule, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let rules: Rules = tree.toml(RULES)?;
    let mut findings = Vec::new();
    let mut known = BTreeMap::new();
    for rule in &rules.rule {
        let texts = rule.sources.iter().chain([&rule.section, &rule.claim]);
        if rule.sources.is_empty() || texts.into_iter().any(|text| text.trim().is_empty()) {
            findings.push(format!("{}: a rule has sources, a section and a claim", rule.id));
        }
        if known.insert(rule.id.as_str(), Citations::default()).is_some() {
            findings.push(format!("{}: there are two rules of this id", rule.id));
        }
    }
    for file in tree.rust() {
        for line in file.lines() {
            let Some(id) = line.text.trim().strip_prefix(CITATION) else { continue };
            match known.get_mut(id.trim()) {
                Some(citations) if line.is_test => citations.tests += 1,
                Some(citations) => citations.code += 1,
                None => {
                    let (path, number) = (&file.path, line.number);
                    findings.push(format!("{path}:{number}: no rule has the id `{}`", id.trim()));
                }
            }
        }
    }
    for (id, citations) in known {
        if citations.code == 0 {
            findings.push(format!("{id}: no code cites this rule"));
        }
        if citations.tests == 0 {
            findings.push(format!("{id}: no test cites this rule"));
        }
    }
    Ok(findings)
}

/// The ids of all rules.
pub(crate) fn ids(tree: &Tree) -> Result<Vec<String>> {
    Ok(tree.toml::<Rules>(RULES)?.rule.into_iter().map(|rule| rule.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(code: &str, test: &str) -> Vec<String> {
        let rules = "[[rule]]\nid = \"a\"\nsources = [\"netif.h\"]\nsection = \"a\"\n\
                     claim = \"Always.\"\n";
        let files = vec![
            file(RULES, rules),
            file("crates/x/src/lib.rs", code),
            file("crates/x/tests/x.rs", test),
        ];
        check(&Tree { files }).expect("the rules are well formed")
    }

    #[test]
    fn a_rule_needs_code_and_a_test_and_a_citation_a_rule() {
        let cited = format!("{CITATION}a\n");
        let both = format!("{cited}#[cfg(test)]\nmod tests {{\n    {cited}}}\n");
        assert_eq!(findings(&cited, &cited), Vec::<String>::new());
        assert_eq!(findings(&both, ""), Vec::<String>::new());
        assert_eq!(findings(&cited, "").len(), 1);
        assert_eq!(findings("", &cited).len(), 1);
        assert_eq!(findings(&cited, &format!("{cited}{CITATION}b\n")).len(), 1);
    }
}
