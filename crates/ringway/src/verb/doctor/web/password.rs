//! Users and the bcrypt hashes of their passwords.
//!
//! Bcrypt is slow by design, so clients could use checks to exhaust this machine's CPU. Therefore a
//! password that was right once is remembered, one check runs at a time, and the next one begins
//! [`CHECK_EVERY`] later at the earliest. A client with wrong passwords gets one check a second,
//! and a remembered one does not wait.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The time from one check to the next.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The users that may read.
pub(super) struct Passwords {
    users: Vec<User>,
    /// When the last check ended. Locked while one runs.
    checked: Mutex<Option<Instant>>,
}

struct User {
    name: String,
    hash: String,
    /// The password, once it was right.
    known: Mutex<Option<Vec<u8>>>,
}

/// The result of checking a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    Unknown,
    /// It was not checked.
    Later,
}

impl Passwords {
    /// From names and bcrypt hashes.
    pub(super) fn of(users: Vec<(String, String)>) -> Passwords {
        let user = |(name, hash)| User { name, hash, known: Mutex::new(None) };
        Passwords { users: users.into_iter().map(user).collect(), checked: Mutex::new(None) }
    }

    /// Judges the value of the header `Authorization`.
    pub(super) fn judge(&self, given: &[u8]) -> Verdict {
        let Some((name, password)) = credentials(given) else { return Verdict::Unknown };
        let user = self.users.iter().find(|user| user.name.as_bytes() == name);
        if let Some(user) = user {
            let known = user.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.as_ref().is_some_and(|known| is_same(known, &password)) {
                return Verdict::Known;
            }
        }
        let Ok(mut checked) = self.checked.try_lock() else { return Verdict::Later };
        if checked.is_some_and(|at| at.elapsed() < CHECK_EVERY) {
            return Verdict::Later;
        }
        // An unknown user takes as long to check as a known one.
        let Some(one) = user.or(self.users.first()) else { return Verdict::Unknown };
        let is_right = bcrypt::verify(&password, &one.hash).unwrap_or(false);
        *checked = Some(Instant::now());
        match user {
            Some(user) if is_right => {
                *user.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(password);
                Verdict::Known
            }
            _ => Verdict::Unknown,
        }
    }
}

/// Name and password of `Basic`, the only supported scheme.
fn credentials(given: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, coded) = given.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let plain = STANDARD.decode(coded.trim_ascii()).ok()?;
    let colon = plain.iter().position(|byte| *byte == b':')?;
    Some((plain.get(..colon)?.to_vec(), plain.get(colon + 1..)?.to_vec()))
}

/// Compares in constant time, so that timing does not reveal how much is right.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(plain: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(plain)).into_bytes()
    }

    #[test]
    fn a_right_password_is_remembered_and_wrong_ones_have_one_check_a_second() {
        let hash = bcrypt::hash("secret", 4).expect("it hashes");
        let passwords = Passwords::of(vec![("anna".to_owned(), hash)]);
        for none in ["", "Basic", "Basic ?", "Bearer YTpi"] {
            assert_eq!(passwords.judge(none.as_bytes()), Verdict::Unknown, "{none}");
        }
        assert_eq!(passwords.judge(&basic("berta:secret")), Verdict::Unknown);
        *passwords.checked.lock().expect("no panic") = None;
        assert_eq!(passwords.judge(&basic("anna:secret")), Verdict::Known);
        // On a busy machine a second may pass between two attempts, so only a large number of them
        // guarantees a refusal.
        for _ in 0..1000 {
            assert_eq!(passwords.judge(&basic("anna:secret")), Verdict::Known);
        }
        let (begun, mut checks) = (Instant::now(), 0);
        for _ in 0..1000 {
            checks += u64::from(passwords.judge(&basic("anna:wrong")) == Verdict::Unknown);
        }
        assert!(checks <= 1 + begun.elapsed().as_secs(), "{checks} in {:?}", begun.elapsed());
        // A remembered password counts for its own user only.
        assert_eq!(passwords.judge(&basic("anna:secret")), Verdict::Known);
    }

    #[test]
    fn comparison_includes_the_length() {
        assert!(is_same(b"secret", b"secret") && is_same(b"", b""));
        assert!(!is_same(b"secret", b"secre") && !is_same(b"secret", b"secres"));
    }
}
