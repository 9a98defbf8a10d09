//! Workers with real threads, between ports whose far side is the test.

mod completion;
mod credit;
mod double;
mod failures;
mod order;
mod placing;
mod pressure;
