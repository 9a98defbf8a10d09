//! Workers with real threads, between ports whose far side is the test.

mod credit;
mod double;
mod failures;
mod held;
mod order;
mod placing;
mod pressure;
