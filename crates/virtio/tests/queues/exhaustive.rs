//! Every order of a few steps on the smallest queues, checked against the model.

use ringway_virtio::{Access, Format, QueueOptions};

use crate::ground::Ground;
use crate::model::{Bench, Step, all_options};

/// Steps of the longest order. One more takes four times as long.
const STEPS_MAX: usize = 8;

#[test]
fn every_order_of_few_steps_agrees_with_plain_lists() {
    let ground = Ground::new();
    for options in all_options().filter(|options| !options.indirect) {
        for size in [1, 2, 3] {
            if options.format == Format::Packed || size != 3 {
                extend(&ground, options, size, &mut Vec::new());
            }
        }
    }
}

/// Tries all orders that begin with these steps, of which the last changes something.
fn extend(ground: &Ground, options: QueueOptions, size: u16, steps: &mut Vec<Step>) {
    let mut bench = Bench::new(ground, options, Access::Readable, size, 1);
    let mut is_change = true;
    for step in &*steps {
        is_change = bench.step(*step);
    }
    if !is_change || steps.len() == STEPS_MAX {
        return;
    }
    for step in Step::FEW {
        steps.push(step);
        extend(ground, options, size, steps);
        steps.pop();
    }
}
