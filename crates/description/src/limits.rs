//! The limits among the keys of a section. Their names are those in [`LIMITS`], so a section has no
//! field for each.
//!
//! Serde's `flatten` would do without this module, but with it a section refuses no unknown key,
//! and no error has its place.
//!
//! [`LIMITS`]: ringway_xenbus::LIMITS

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;

use ringway_switch::{FloodLimit, StormLimits};
use ringway_xenbus::limits::{Field, Scope};
use ringway_xenbus::{FloodWish, Keys, Limit, NotARate, Rate, VifLimits};
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Unexpected,
    Visitor,
};
use serde::ser::Serializer;

use crate::quantity::{Megabits, NONE, Quantity};
use crate::value::{Within, text};

/// Frames or megabits in a second: all but one that stands for no limit.
const PER_SECOND_MAX: u64 = 4_294_967_294;

/// A section with its limits, apart from its other keys.
#[derive(Default)]
pub(crate) struct Limited<S> {
    section: S,
    pub(crate) limits: VifLimits,
}

/// A section that may have limits.
pub(crate) trait Section {
    /// Which limits it may have.
    const SCOPE: Scope;
    /// What the parser expects where it is.
    const EXPECTED: &'static str;
}

impl<S> Deref for Limited<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.section
    }
}

impl<S> Limited<S> {
    pub(crate) fn into_parts(self) -> (S, VifLimits) {
        (self.section, self.limits)
    }
}

impl<'de, S: Section + Deserialize<'de>> Deserialize<'de> for Limited<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SectionVisitor(PhantomData))
    }
}

struct SectionVisitor<S>(PhantomData<S>);

impl<'de, S: Section + Deserialize<'de>> Visitor<'de> for SectionVisitor<S> {
    type Value = Limited<S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(S::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limited<S>, A::Error> {
        let mut limits = VifLimits::default();
        let others = Others { map, scope: S::SCOPE, limits: &mut limits };
        let section = S::deserialize(MapAccessDeserializer::new(others))?;
        Ok(Limited { section, limits })
    }
}

/// The keys of a section without those of limits, whose values it takes out.
struct Others<'a, A> {
    map: A,
    scope: Scope,
    limits: &'a mut VifLimits,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Others<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        mut seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            match self.map.next_key_seed(KeySeed { seed, scope: self.scope })? {
                None => return Ok(None),
                Some(Key::Other(key)) => return Ok(Some(key)),
                Some(Key::Limit(limit, unused)) => {
                    self.map.next_value_seed(ValueSeed { limit, limits: self.limits })?;
                    seed = unused;
                }
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a key: a limit's name, or with the section's own `seed`.
struct KeySeed<K> {
    seed: K,
    scope: Scope,
}

enum Key<K, V> {
    Limit(&'static Limit, K),
    Other(V),
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<K> {
    type Value = Key<K, K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let name = String::deserialize(deserializer)?;
        match Limit::named(&name).filter(|limit| limit.is_of(self.scope)) {
            Some(limit) => Ok(Key::Limit(limit, self.seed)),
            None => self.seed.deserialize(name.into_deserializer()).map(Key::Other),
        }
    }
}

/// Reads the value of a limit into its place.
struct ValueSeed<'a> {
    limit: &'static Limit,
    limits: &'a mut VifLimits,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.limit.field {
            Field::Rate(of) => {
                *of(self.limits) = text::deserialize::<RateText, D>(deserializer)?.0;
            }
            Field::Link(of) => *of(self.limits) = Some(text::deserialize(deserializer)?),
            Field::Offloads(of) => *of(self.limits) = Some(text::deserialize(deserializer)?),
            Field::Weight(of) => {
                *of(self.limits) = Within::<1, 1000>::deserialize(deserializer)?.get();
            }
            Field::PerSecond(of) if self.limit.is_of_megabits() => {
                *of(self.limits) =
                    Quantity::<Megabits, 0, PER_SECOND_MAX>::deserialize(deserializer)?.get();
            }
            Field::PerSecond(of) => *of(self.limits) = Some(Frames::deserialize(deserializer)?.0),
        }
        Ok(())
    }
}

/// A rate as written, such as `100Mb/s` or `1MB/s@20ms`, or `none`.
struct RateText(Option<Rate>);

impl FromStr for RateText {
    type Err = String;

    fn from_str(text: &str) -> Result<RateText, String> {
        match text {
            NONE => Ok(RateText(None)),
            _ => text
                .parse()
                .map(|rate| RateText(Some(rate)))
                .map_err(|error: NotARate| error.to_string()),
        }
    }
}

/// Frames in a second: a number, or `none`.
struct Frames(u32);

impl<'de> Deserialize<'de> for Frames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Frames, D::Error> {
        deserializer.deserialize_any(FramesVisitor)
    }
}

/// A visitor, so that the parser knows the place of a value that is refused.
struct FramesVisitor;

impl Visitor<'_> for FramesVisitor {
    type Value = Frames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number, or {NONE:?}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Frames, E> {
        let frames = u32::try_from(number).ok().filter(|it| u64::from(*it) <= PER_SECOND_MAX);
        frames.map(Frames).ok_or_else(|| {
            E::custom(format!(
                "{number} is out of range: expected a whole number from 0 to {PER_SECOND_MAX}"
            ))
        })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Frames, E> {
        match text {
            NONE => Ok(Frames(0)),
            _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }
}

/// Serialises limits by their keys in XenStore.
pub(crate) fn serialize<S: Serializer>(
    limits: &VifLimits,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(limits.keys())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<VifLimits, D::Error> {
    let keys = BTreeMap::<String, String>::deserialize(deserializer)?;
    Ok(VifLimits::read(&Keys::new("", keys)).0)
}

/// A limit of floods in the form that the switch uses; its ticks are seconds.
pub(crate) fn per_second(limit: FloodWish) -> FloodLimit {
    FloodLimit::per_second(limit.rate.unwrap_or(0), limit.mbit.unwrap_or(0))
}

/// The limits of each kind of flood, in that form.
pub(crate) fn storm(limits: &VifLimits) -> StormLimits {
    StormLimits {
        broadcast: per_second(limits.broadcast),
        multicast: per_second(limits.multicast),
        unknown: per_second(limits.unknown),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Usage, parse};

    #[test]
    fn a_limit_may_be_none_as_it_is_shown() {
        let text = "[switch]\nflood-rate = 'none'\nflood-mbit = 'none'\n\
                    [[vhost]]\nname = 'vm1'\nsocket = '/vm1'\nrate = 'none'\n\
                    unknown-rate = 'none'\n";
        let host = parse("host.toml", text, Usage::default()).expect("good");
        let flood = host.switch.limits.flood;
        assert_eq!((flood.rate, flood.mbit), (Some(0), Some(0)));
        let limits = host.vhosts[0].vif.limits;
        assert_eq!((limits.rate, limits.unknown.rate), (None, Some(0)));
        let quoted = parse("host.toml", "[switch]\nflood-rate = '5'\n", Usage::default());
        let quoted = quoted.expect_err("it is text").to_string();
        let expected = "line 2: switch.flood-rate: expected a whole number, or \"none\"";
        assert!(quoted.contains(expected), "{quoted}");
    }
}
