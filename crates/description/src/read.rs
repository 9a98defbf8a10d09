//! Reads a description from its file, whatever that is.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use crate::{DescriptionError, Host, Usage, parse};

/// Bytes of a description: far more than the longest with all guests.
pub const FILE_LEN_MAX: u64 = 4 << 20;

/// Reads the description of a host: its text, and what it says.
///
/// # Errors
/// Everything that is wrong, and where.
pub fn read(path: &Path, usage: Usage) -> Result<(String, Host), DescriptionError> {
    let content = content(path).map_err(|error| fault(path, error.to_string()))?;
    let host = parse(&path.display().to_string(), &content, usage)?;
    Ok((content, host))
}

/// Reads the description of a host that runs already. A pipe would be empty by now, which is a
/// valid description without vifs, or keep the reader waiting.
///
/// # Errors
/// Everything that is wrong, and where.
pub fn read_again(path: &Path, usage: Usage) -> Result<(String, Host), DescriptionError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(fault(path, "is no file that can be read again, as a pipe cannot".to_owned()))
        }
        _ => read(path, usage),
    }
}

fn fault(path: &Path, message: String) -> DescriptionError {
    DescriptionError::of_file(&path.display().to_string(), message)
}

fn content(path: &Path) -> io::Result<String> {
    let mut content = Vec::new();
    let len = File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut content)?;
    if u64::try_from(len).is_ok_and(|len| len <= FILE_LEN_MAX) {
        String::from_utf8(content).map_err(|_| io::Error::other("is no text in UTF-8"))
    } else {
        Err(io::Error::other(format!("is too long: expected at most {FILE_LEN_MAX} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(read: Result<(String, Host), DescriptionError>) -> String {
        read.expect_err("it is refused").to_string()
    }

    #[test]
    fn a_description_has_a_length() {
        let endless = refusal(read(Path::new("/dev/zero"), Usage::default()));
        assert_eq!(endless, "/dev/zero: is too long: expected at most 4194304 bytes");
    }

    #[test]
    fn what_is_no_file_is_not_read_again() {
        let empty = Path::new("/dev/null");
        assert!(read(empty, Usage::default()).is_ok());
        let again = refusal(read_again(empty, Usage::default()));
        assert_eq!(again, "/dev/null: is no file that can be read again, as a pipe cannot");
        let missing = refusal(read_again(Path::new("/dev/none"), Usage::default()));
        assert!(missing.contains("No such file"), "{missing}");
    }
}
