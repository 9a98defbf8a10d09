//! Selects the lengths to try, and evaluates the replies. It sends nothing itself.

use std::net::IpAddr;

use crate::parse::path::Step;

/// What happened to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The host received it.
    Arrived { micros: u64 },
    /// A router reported that it is too long for the next link.
    TooLong { by: IpAddr, mtu: u32 },
    /// A router reported that its hop limit was exceeded.
    Expired { by: IpAddr },
    /// There was no reply within the time limit.
    Silence,
}

/// Sends a packet of a length with a hop limit, or without one. An error ends the search; its text
/// is part of the result.
pub(super) type Ask<'a> = dyn FnMut(u32, Option<u8>) -> Result<Outcome, String> + 'a;

/// Reports of smaller and smaller lengths to follow; an honest path has few, a forged one many.
const REFUSALS_MAX: usize = 8;
/// Hops to probe to find where a packet is lost.
const HOPS_MAX: u8 = 16;
/// Consecutive silent routers after which no more are probed.
const SILENT_HOPS_MAX: u8 = 3;
/// Usual MTUs of links, tried first because each length that is too long costs a timeout: IPv6's
/// minimum, tunnels over Ethernet, Ethernet, tunnels over jumbo frames, jumbo frames.
const USUAL: [u32; 11] = [1280, 1400, 1420, 1450, 1480, 1492, 1500, 4000, 8950, 9000, 9216];

/// Finds the longest packet that passes, between `least`, which every link must carry, and `local`,
/// the interface's MTU; then which router refuses longer ones, or where they are lost.
pub(super) fn search(ask: &mut Ask<'_>, least: u32, local: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Err(why) = find(ask, least, local, &mut steps) {
        steps.push(Step::Stopped(why));
    }
    steps
}

fn find(ask: &mut Ask<'_>, least: u32, local: u32, steps: &mut Vec<Step>) -> Result<(), String> {
    match ask(least, None)? {
        Outcome::Arrived { micros } => steps.push(Step::Passed { len: least, micros }),
        _ => {
            steps.push(Step::Lost { len: least });
            return Ok(());
        }
    }
    let Some(mut lost) = descend(ask, least, local, steps)? else { return Ok(()) };
    let mut passed = least;
    while let Some(len) = between(passed, lost) {
        if let Outcome::Arrived { micros } = ask(len, None)? {
            passed = len;
            steps.push(Step::Passed { len, micros });
        } else {
            lost = len;
            steps.push(Step::Lost { len });
        }
    }
    locate(ask, least, lost, steps)
}

/// Follows the routers' reports from the longest packet down. Returns the first length without any
/// report; `None` if one arrived.
fn descend(
    ask: &mut Ask<'_>,
    least: u32,
    local: u32,
    steps: &mut Vec<Step>,
) -> Result<Option<u32>, String> {
    let mut len = local;
    for _ in 0..=REFUSALS_MAX {
        if len <= least {
            return Ok(None);
        }
        match ask(len, None)? {
            Outcome::Arrived { micros } => {
                steps.push(Step::Passed { len, micros });
                return Ok(None);
            }
            // A length that is impossible for a link, or no shorter, is ignored.
            Outcome::TooLong { by, mtu } if (least..len).contains(&mtu) => {
                steps.push(Step::Refused { len, by, mtu });
                len = mtu;
            }
            _ => break,
        }
    }
    steps.push(Step::Lost { len });
    Ok(Some(len))
}

/// The next length to try between one that passed and one that did not: the middle one of the usual
/// lengths; if none is left, one byte more than a usual one that passed; else the middle.
fn between(passed: u32, lost: u32) -> Option<u32> {
    if lost - passed <= 1 {
        return None;
    }
    let usual: Vec<u32> =
        USUAL.into_iter().filter(|len| (passed + 1..lost).contains(len)).collect();
    let middle = usual.get(usual.len() / 2).copied();
    let next = || USUAL.contains(&passed).then_some(passed + 1);
    Some(middle.or_else(next).unwrap_or(passed + (lost - passed) / 2))
}

/// Finds how far a lost packet gets, and the next router.
fn locate(ask: &mut Ask<'_>, short: u32, long: u32, steps: &mut Vec<Step>) -> Result<(), String> {
    let mut silent = 0;
    for hops in 1..=HOPS_MAX {
        if let Outcome::Expired { by } = ask(long, Some(hops))? {
            steps.push(Step::Reached { hops, by });
            silent = 0;
            continue;
        }
        match ask(short, Some(hops))? {
            Outcome::Expired { by } => {
                steps.push(Step::Missed { hops, by });
                return Ok(());
            }
            // The host itself, which is beyond the last router.
            Outcome::Arrived { .. } => return Ok(()),
            _ => silent += 1,
        }
        if silent == SILENT_HOPS_MAX {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router: the MTU of its next link, and whether it reports packets that are too long.
    type Hop = (u32, bool);

    fn router(index: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, u8::try_from(index + 1).expect("few")])
    }

    /// A path of routers to a host behind them.
    fn path(hops: Vec<Hop>) -> impl FnMut(u32, Option<u8>) -> Result<Outcome, String> {
        move |len, limit| {
            for (index, (mtu, speaks)) in hops.iter().enumerate() {
                if limit.is_some_and(|limit| usize::from(limit) == index + 1) {
                    return Ok(Outcome::Expired { by: router(index) });
                }
                if len > *mtu {
                    let by = router(index);
                    return Ok(if *speaks {
                        Outcome::TooLong { by, mtu: *mtu }
                    } else {
                        Outcome::Silence
                    });
                }
            }
            Ok(Outcome::Arrived { micros: 100 })
        }
    }

    fn longest(steps: &[Step]) -> u32 {
        let passed = steps.iter().filter_map(|step| match step {
            Step::Passed { len, .. } => Some(*len),
            _ => None,
        });
        passed.max().expect("something passes")
    }

    #[test]
    fn a_path_without_a_narrow_link_takes_two_packets() {
        let steps = search(&mut path(vec![(9000, true), (9000, true)]), 576, 9000);
        assert_eq!((steps.len(), longest(&steps)), (2, 9000));
    }

    #[test]
    fn who_says_that_it_is_too_long_is_followed() {
        let steps = search(&mut path(vec![(9000, true), (1500, true), (1400, true)]), 576, 9000);
        assert_eq!(longest(&steps), 1400);
        assert!(steps.contains(&Step::Refused { len: 9000, by: router(1), mtu: 1500 }));
        assert!(steps.contains(&Step::Refused { len: 1500, by: router(2), mtu: 1400 }));
    }

    #[test]
    fn a_black_hole_is_measured_to_the_byte_and_located() {
        for mtu in (577..9000).step_by(37).chain([1280, 1400, 1499, 1500, 1501, 8999]) {
            let mut asked = 0;
            let mut hops = path(vec![(9000, true), (mtu, false), (9000, true)]);
            let mut ask = |len, limit| {
                asked += 1;
                hops(len, limit)
            };
            let steps = search(&mut ask, 576, 9000);
            assert_eq!(longest(&steps), mtu);
            assert!(steps.contains(&Step::Lost { len: mtu + 1 }), "{mtu}: {steps:?}");
            assert!(steps.contains(&Step::Reached { hops: 2, by: router(1) }), "{steps:?}");
            assert_eq!(steps.last(), Some(&Step::Missed { hops: 3, by: router(2) }));
            assert!(asked < 30, "{asked} packets for {mtu}");
        }
    }

    #[test]
    fn a_router_that_lies_does_not_lead_far() {
        for mtu in [0, 575, 9000, u32::MAX] {
            let mut asked = 0;
            let mut liar = |len: u32, _| {
                asked += 1;
                let by = router(0);
                Ok(if len == 576 {
                    Outcome::Arrived { micros: 1 }
                } else {
                    Outcome::TooLong { by, mtu }
                })
            };
            let steps = search(&mut liar, 576, 9000);
            assert_eq!(longest(&steps), 576);
            assert!(asked < 80, "{asked}");
        }
        let mut slow = |len: u32, _| {
            let by = router(0);
            Ok(if len == 576 {
                Outcome::Arrived { micros: 1 }
            } else {
                Outcome::TooLong { by, mtu: len - 1 }
            })
        };
        let steps = search(&mut slow, 576, 9000);
        let refusals = steps.iter().filter(|step| matches!(step, Step::Refused { .. })).count();
        assert!(refusals <= REFUSALS_MAX + 1, "{refusals}");
    }

    #[test]
    fn silence_and_a_lack_of_time_are_reported() {
        let silence = |_: u32, _: Option<u8>| Ok(Outcome::Silence);
        assert_eq!(search(&mut { silence }, 576, 1500), [Step::Lost { len: 576 }]);
        let over = |_: u32, _: Option<u8>| Err("no more time".to_owned());
        assert_eq!(search(&mut { over }, 576, 1500), [Step::Stopped("no more time".to_owned())]);
    }
}
