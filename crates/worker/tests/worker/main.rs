//! Workers with real threads, between ports whose far side is the test.

mod double;
mod failures;
mod order;
mod placing;
mod pressure;
