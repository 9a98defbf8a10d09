//! How a handshake's actions are carried out.

use ringway_xenbus::{backend, frontend};
use ringway_xenstore::{Lost, Refusal, XsError, or_refusal};

/// The state machine of one end.
pub trait Machine {
    /// An event that it handles.
    type Input;
    /// An action that it requests.
    type Action;

    /// Takes an input and returns the resulting actions, in order.
    fn handle(&mut self, input: Self::Input) -> Vec<Self::Action>;
}

/// What carries out the actions of a machine.
pub trait Shell<M: Machine> {
    /// Carries out one action. If the action asks for a response, returns it, or `None` if the
    /// response comes later as a separate input.
    ///
    /// # Errors
    /// A refusal of XenStore, or its loss.
    fn act(&mut self, action: M::Action) -> Result<Option<M::Input>, XsError>;

    /// What follows if XenStore refuses an action.
    fn refused(&mut self, refusal: &Refusal) -> OnRefusal<M::Input>;

    /// Whether the action is still carried out after a refusal that [fails](OnRefusal::Fail) the
    /// end: it affects this process only.
    fn is_local(action: &M::Action) -> bool;
}

/// What follows on a refusal.
#[derive(Debug)]
pub enum OnRefusal<I> {
    /// The end continues as if nothing had happened.
    GoOn,
    /// Only the local ones of the remaining actions are carried out, and this is the next input.
    Fail(I),
}

/// Runs a machine until it waits for something from outside.
///
/// # Errors
/// The loss of XenStore.
pub fn drive<M: Machine, S: Shell<M>>(
    machine: &mut M,
    shell: &mut S,
    input: M::Input,
) -> Result<(), Lost> {
    let mut next = Some(input);
    while let Some(input) = next.take() {
        let mut has_failed = false;
        for action in machine.handle(input) {
            if has_failed && !S::is_local(&action) {
                continue;
            }
            match or_refusal(shell.act(action))? {
                Ok(response) => next = response.or(next),
                Err(refusal) => match shell.refused(&refusal) {
                    OnRefusal::GoOn => {}
                    OnRefusal::Fail(input) => {
                        has_failed = true;
                        next = Some(input);
                    }
                },
            }
        }
    }
    Ok(())
}

impl Machine for backend::Handshake {
    type Input = backend::Input;
    type Action = backend::Action;

    fn handle(&mut self, input: backend::Input) -> Vec<backend::Action> {
        backend::Handshake::handle(self, input)
    }
}

impl Machine for frontend::Handshake {
    type Input = frontend::Input;
    type Action = frontend::Action;

    fn handle(&mut self, input: frontend::Input) -> Vec<frontend::Action> {
        frontend::Handshake::handle(self, input)
    }
}
