//! Operations of a protocol as an enum.

/// Defines `Op` together with its wire numbers, so that the two cannot drift apart.
macro_rules! operations {
    (
        $(#[$about:meta])*
        pub enum Op { $($(#[$doc:meta])* $name:ident = $number:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Op { $($(#[$doc])* $name = $number,)* }

        impl Op {
            /// Every operation of the protocol, whether ringway implements it or not.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// The number in a message's header.
            pub const fn number(self) -> u32 {
                match self { $(Op::$name => $number,)* }
            }

            /// The operation with this number, if there is one.
            pub const fn from_number(number: u32) -> Option<Op> {
                match number { $($number => Some(Op::$name),)* _ => None }
            }
        }
    };
}

pub(crate) use operations;
