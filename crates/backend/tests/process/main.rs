//! The processes around a host: what their loops hear, and what they say to others. Each is a
//! thread here, and its guests have no rings.

mod running;
mod switch;
mod tenant;
mod vifs;
