//! Checks the number of recorded fixtures of the doctor that documents state.
//!
//! Each fixture begins with its origin. Documents that count the fixtures must agree.

use crate::tree::{SourceFile, Tree};

const FIXTURES: &str = "doctor/fixtures/";

/// Documents without the current numbers, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let fixtures = tree.files.iter().filter(|file| file.path.starts_with(FIXTURES));
    let fixtures: Vec<&SourceFile> = fixtures.collect();
    let has = |origin: &str| {
        let first = format!("origin = \"{origin}\"\n");
        fixtures.iter().filter(|file| file.text.starts_with(&first)).count()
    };
    let (all, recorded, written) = (fixtures.len(), has("recorded"), has("written"));
    let sentences = [
        (
            "docs/introduction.md",
            format!("{written} of the doctor's {all} fixtures are hand-written"),
        ),
        ("doctor/README.md", format!("{recorded} of {all} are recorded")),
    ];
    let is_missing = |path: &str, sentence: &str| {
        !tree.file(path).is_some_and(|file| file.text.contains(sentence))
    };
    let missing = sentences.iter().filter(|(path, sentence)| is_missing(path, sentence));
    missing.map(|(path, sentence)| format!("{path}: does not say \"{sentence}\"")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    #[test]
    fn documents_have_the_right_number_of_fixtures() {
        let fixture = |name: &str, origin: &str| {
            file(&format!("{FIXTURES}{name}.txt"), &format!("origin = \"{origin}\"\n-- a --\n1\n"))
        };
        let files = vec![
            fixture("d01-sick", "written"),
            fixture("d01-healthy", "written"),
            fixture("d01-sick-recorded", "recorded"),
            file("docs/introduction.md", "2 of the doctor's 3 fixtures are hand-written."),
            file("doctor/README.md", "1 of 3 are recorded, in guests"),
        ];
        assert_eq!(check(&Tree { files }), [""; 0]);
        let stale =
            [fixture("d02-sick", "written"), file("doctor/README.md", "1 of 3 are recorded")];
        assert_eq!(
            check(&Tree { files: stale.into() }),
            [
                "docs/introduction.md: does not say \"1 of the doctor's 1 fixtures are \
                 hand-written\"",
                "doctor/README.md: does not say \"0 of 1 are recorded\"",
            ]
        );
    }
}
