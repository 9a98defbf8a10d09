//! Enumerations that people write as one word, in descriptions and in XenStore.

/// Gives an enumeration its `Display` and `FromStr`: a word for each value, and the message for a
/// text that is no such word.
///
/// ```
/// enum Light {
///     On,
///     Off,
/// }
///
/// ringway_datapath::words! {
///     Light { On = "on", Off = "off" }
///     else |text| format!("`{text}`: expected on or off")
/// }
///
/// assert_eq!(Light::On.to_string(), "on");
/// assert_eq!("dim".parse::<Light>().err().as_deref(), Some("`dim`: expected on or off"));
/// ```
#[macro_export]
macro_rules! words {
    (
        $name:ident { $($value:ident = $word:literal),+ $(,)? }
        else |$text:ident| $message:expr
    ) => {
        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(match self {
                    $($name::$value => $word,)+
                })
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = String;

            fn from_str($text: &str) -> ::core::result::Result<$name, String> {
                match $text {
                    $($word => Ok($name::$value),)+
                    _ => Err($message),
                }
            }
        }
    };
}
