//! The terminal as a screen that is drawn again and again, and its keys.
//!
//! Sequences are those of ECMA-48, which every terminal of Linux knows. A library for this would be
//! a third of what the program links, and the program also serves guests that are not trusted.

use std::io::{self, Read, Write};

use ringway_terminal::table::shown;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// A screen of its own, without a cursor.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// Clears the rest of a line, and all lines below.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
/// Lines of a terminal that does not know its size, and columns.
const SIZE_DEFAULT: (usize, usize) = (24, 80);

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// A character of ASCII.
    Char(char),
    Up,
    Down,
    Escape,
}

/// The terminal of standard input and output. Dropping it makes the terminal what it was.
pub(crate) struct Screen {
    before: Termios,
}

impl Screen {
    /// Takes over the terminal. Ctrl-C still raises SIGINT.
    ///
    /// # Errors
    /// Standard input is not a terminal, or standard output cannot be written.
    pub(crate) fn begin() -> io::Result<Screen> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // Without Ctrl-Z: a shell would show its prompt on this screen.
        raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Screen { before };
        write(BEGIN)?;
        Ok(screen)
    }

    /// Draws a title, a table whose first line is its head, without its first `skipped` rows, and a
    /// last line.
    pub(crate) fn draw(
        &self,
        title: &str,
        table: &str,
        skipped: usize,
        foot: &str,
    ) -> io::Result<()> {
        write(&frame(self.size(), title, table, skipped, foot))
    }

    /// The lines and columns of the terminal.
    pub(crate) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
        size.filter(|(lines, columns)| *lines > 0 && *columns > 0).unwrap_or(SIZE_DEFAULT)
    }

    /// The keys that were pressed since the last call, once standard input is readable. Its end is
    /// [`Key::Escape`].
    pub(crate) fn keys(&self) -> io::Result<Vec<Key>> {
        let mut bytes = [0; 64];
        let len = io::stdin().lock().read(&mut bytes)?;
        Ok(if len == 0 { vec![Key::Escape] } else { keys(&bytes[..len]) })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs neither.
        let _ = write(END);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What draws a screen of so many lines and columns.
fn frame(
    (lines, columns): (usize, usize),
    title: &str,
    table: &str,
    skipped: usize,
    foot: &str,
) -> String {
    let sentence = |text: &str| cut(text, columns, &[", ", "; "]);
    let cells = |text: &str| cut(text, columns, &["  "]);
    let mut rows = table.lines();
    let head = rows.next().unwrap_or_default();
    let mut drawn = format!("{HOME}{}{CLEAR_LINE}\r\n", sentence(title));
    drawn += &format!("{BOLD}{}{PLAIN}{CLEAR_LINE}\r\n", cells(head));
    for row in rows.skip(skipped).take(lines.saturating_sub(3)) {
        drawn += &format!("{}{CLEAR_LINE}\r\n", cells(row));
    }
    drawn + CLEAR_BELOW + &format!("\x1b[{lines};1H{}{CLEAR_LINE}", sentence(foot))
}

/// As much of a text as so many columns hold, up to the end of a part or else of a word: a number
/// that is cut would be another one.
fn cut(text: &str, columns: usize, between_parts: &[&str]) -> String {
    let text = shown(text);
    if text.chars().count() <= columns {
        return text;
    }
    let room: String = text.chars().take(columns.saturating_sub(1)).collect();
    let end = between_parts.iter().filter_map(|separator| room.rfind(separator)).max();
    let end = end.or_else(|| room.rfind(' ')).unwrap_or(room.len());
    format!("{}…", room[..end].trim_end())
}

/// The keys behind what a terminal sends. Sequences of other keys are ignored.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match (first, rest) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => {
                let end = sequence.iter().position(|byte| (0x40..0x7f).contains(byte));
                let len = end.map_or(sequence.len(), |end| end + 1);
                match sequence[..len] {
                    [b'A'] => keys.push(Key::Up),
                    [b'B'] => keys.push(Key::Down),
                    _ => {}
                }
                bytes = &sequence[len..];
            }
            (0x1b, _) => keys.push(Key::Escape),
            _ => keys.push(Key::Char(char::from(*first))),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_sequences() {
        assert_eq!(keys(b"q"), [Key::Char('q')]);
        assert_eq!(keys(b"\x1b[A\x1bOBp"), [Key::Up, Key::Down, Key::Char('p')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        // Page down, a key with a modifier, and a sequence that is cut.
        assert_eq!(keys(b"\x1b[6~\x1b[1;5Ar\x1b[1"), [Key::Char('r')]);
    }

    #[test]
    fn a_frame_fits_the_screen() {
        let table = "VIF\nvif1.0\nvif2.0\nvif3.0\nvif4.0\n";
        let drawn = frame((5, 5), "a title \x1b[2J", table, 1, "keys: q");
        assert_eq!(drawn.matches("\r\n").count(), 4, "{drawn:?}");
        assert!(drawn.contains("a…") && !drawn.contains("a t"), "{drawn:?}");
        assert!(drawn.contains("vif2…") && drawn.contains("vif3…"), "{drawn:?}");
        assert!(!drawn.contains("vif1") && !drawn.contains("vif4"), "{drawn:?}");
        assert!(drawn.ends_with("\x1b[5;1Hkeys…\x1b[K"), "{drawn:?}");
    }

    #[test]
    fn no_number_is_cut() {
        let title = "backend 12345, policy balanced, 2 workers busy 100 %, 87 %, 10 of 12 vifs \
                     connected, 1024 addresses";
        let foot = "sort: v vif, p packets; r reverse; 10 more";
        let row = "vm1  1.16 G     98.77 k";
        let sentence = &[", ", "; "][..];
        for (text, separators) in [(title, sentence), (foot, sentence), (row, &["  "])] {
            for columns in 16..=text.chars().count() {
                let cut = cut(text, columns, separators);
                assert!(cut.chars().count() <= columns, "{columns}: {cut}");
                let end = cut.trim_end_matches('…').len();
                let is_whole = separators.iter().any(|it| text[end..].starts_with(it));
                assert!(is_whole || cut == text, "{columns}: {cut}");
            }
        }
    }
}
