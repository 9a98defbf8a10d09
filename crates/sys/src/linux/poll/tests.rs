use super::*;
use crate::wake::WakeFd;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token {
    Stop,
    First,
    Second,
}

use Token::{First, Second, Stop};

fn bells<const COUNT: usize>() -> [WakeFd; COUNT] {
    std::array::from_fn(|_| WakeFd::new().expect("a descriptor is left"))
}

/// Does in each turn what `act` does with its number and its second source.
struct Thread<'a, F> {
    first: &'a WakeFd,
    second: Option<&'a WakeFd>,
    act: F,
    /// What each turn was given.
    turns: Vec<Vec<Token>>,
}

impl<F: FnMut(usize, &mut Option<&WakeFd>) -> io::Result<()>> Turns for Thread<'_, F> {
    type Token = Token;
    const STOP: Token = Stop;

    fn turn(&mut self, ready: &[Token]) -> io::Result<Option<Duration>> {
        self.turns.push(ready.to_vec());
        (self.act)(self.turns.len(), &mut self.second).map(|()| None)
    }

    fn sources(&self) -> Vec<Source<'_, Token>> {
        let second = self.second.iter().map(|second| readable(Second, *second));
        [readable(First, self.first)].into_iter().chain(second).collect()
    }
}

#[test]
fn ready_sources_are_reported_together_in_the_order_in_which_they_were_added() {
    let [first, second, third] = bells();
    let sources = [readable(1, &first), readable(2, &second), readable(3, &third)];
    third.ring();
    first.ring();
    assert_eq!(wait(&sources, None).expect("they can be polled"), [1, 3]);
    second.ring();
    third.clear();
    assert_eq!(wait(&sources, None).expect("they can be polled"), [1, 2]);
}

#[test]
fn a_source_that_is_always_ready_does_not_delay_another() {
    let [first, second, stop] = bells();
    first.ring();
    let act = |turn, _: &mut Option<&WakeFd>| {
        match turn {
            3 => second.ring(),
            4 => stop.ring(),
            _ => {}
        }
        Ok(())
    };
    let mut thread = Thread { first: &first, second: Some(&second), act, turns: Vec::new() };
    take_turns(&mut thread, &stop).expect("no turn fails");
    assert_eq!(thread.turns, [vec![], vec![First], vec![First], vec![First, Second]]);
}

#[test]
fn a_source_that_is_removed_while_its_event_is_pending_is_not_reported() {
    let [first, second, stop] = bells();
    let act = |turn, removed: &mut Option<&WakeFd>| {
        match turn {
            1 => {
                second.ring();
                first.ring();
                *removed = None;
            }
            _ => stop.ring(),
        }
        Ok(())
    };
    let mut thread = Thread { first: &first, second: Some(&second), act, turns: Vec::new() };
    take_turns(&mut thread, &stop).expect("no turn fails");
    assert_eq!(thread.turns, [vec![], vec![First]]);
}

#[test]
fn the_loop_ends_with_the_error_of_a_turn_and_before_another_turn_when_it_should_stop() {
    let [first, stop] = bells();
    stop.ring();
    first.ring();
    let fails_later = |turn, _: &mut Option<&WakeFd>| match turn {
        1 => Ok(()),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    };
    let mut thread = Thread { first: &first, second: None, act: fails_later, turns: Vec::new() };
    take_turns(&mut thread, &stop).expect("the first turn succeeds");
    let error = take_turns(&mut thread, &stop).expect_err("the second fails");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(thread.turns, [vec![], vec![]]);
}

#[test]
fn a_wait_without_a_ready_source_takes_its_time_and_a_closed_one_is_ready() {
    let [silent] = bells();
    let (start, limit) = (Instant::now(), Duration::from_millis(20));
    // waits: the least time that a wait may take is what is tested
    assert!(!wait_readable(&silent, Some(limit)).expect("it can be polled"));
    // waits: as above
    assert!(start.elapsed() >= limit);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("descriptors are left");
    drop(theirs);
    assert!(wait_readable(&ours, Some(Duration::MAX)).expect("it can be polled"));
}
