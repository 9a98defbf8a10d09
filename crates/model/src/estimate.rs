//! Numbers that are known more or less well.

use serde::Serialize;

/// What is known of a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Estimate {
    /// The number itself, if the data identify it.
    pub value: Option<f64>,
    /// The lower end of where it may be.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A prediction whose ends differ by more, relative to the mean, has no value.
pub(crate) const SPREAD_MAX: f64 = 0.25;

impl Estimate {
    /// A number that is known.
    pub fn known(value: f64) -> Estimate {
        Estimate { value: Some(value), low: value, high: value }
    }

    /// A number of which only the ends are known.
    pub fn range(low: f64, high: f64) -> Estimate {
        Estimate { value: None, low, high }
    }

    /// From all possible numbers, of which the first is the likeliest: that is the value, unless
    /// they differ too much.
    pub fn over(mut possible: impl Iterator<Item = f64>) -> Estimate {
        let first = possible.next().unwrap_or(f64::NAN);
        let widened = |(low, high): (f64, f64), it: f64| (low.min(it), high.max(it));
        let (low, high) = possible.fold((first, first), widened);
        Estimate { value: (high - low <= first * SPREAD_MAX).then_some(first), low, high }
    }

    /// What is known of a multiple of the number.
    #[must_use]
    pub fn times(self, factor: f64) -> Estimate {
        let Estimate { value, low, high } = self;
        let value = value.map(|value| value * factor);
        Estimate { value, low: low * factor, high: high * factor }
    }

    /// What is known of the number times one that may be wrong by this part of itself.
    #[must_use]
    pub fn widened(self, error: f64) -> Estimate {
        let (low, high) = (self.low * (1.0 - error).max(0.0), self.high * (1.0 + error));
        Estimate { value: self.value.filter(|_| 2.0 * error <= SPREAD_MAX), low, high }
    }

    /// What is known of a number divided by it.
    #[must_use]
    pub fn dividing(self, number: f64) -> Estimate {
        let Estimate { value, low, high } = self;
        let value = value.map(|value| number / value);
        Estimate { value, low: number / high, high: number / low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_of_near_numbers_is_the_value_and_distant_ones_are_a_range() {
        let of = |all: &[f64]| Estimate::over(all.iter().copied());
        assert_eq!(of(&[4.0, 3.5, 4.25]), Estimate { value: Some(4.0), low: 3.5, high: 4.25 });
        assert_eq!(of(&[4.0, 2.0]), Estimate { value: None, low: 2.0, high: 4.0 });
        assert_eq!(of(&[]).value, None);
        assert_eq!(Estimate::known(4.0).widened(0.125).value, Some(4.0));
        assert_eq!(Estimate::known(4.0).widened(1.5), Estimate::range(0.0, 10.0));
    }
}
