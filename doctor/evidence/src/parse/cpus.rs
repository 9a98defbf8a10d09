//! CPUs by number, and sets of them as the kernel writes them.

use std::collections::BTreeSet;

/// `NR_CPUS` of the largest kernels: a higher CPU number is not credible, and would make us
/// allocate sets of that size.
const CPUS_MAX: usize = 8192;

/// The number of a CPU; `None` if a CPU cannot have it.
pub fn cpu_number(word: &str) -> Option<usize> {
    word.parse().ok().filter(|number| *number < CPUS_MAX)
}

/// CPUs as a mask: comma-separated words of 32 bits. Impossible CPUs are left out.
pub fn cpu_mask(cpus: impl IntoIterator<Item = usize>) -> String {
    let mut words = vec![0_u32];
    for cpu in cpus.into_iter().filter(|cpu| *cpu < CPUS_MAX) {
        words.resize(words.len().max(cpu / 32 + 1), 0);
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    let (first, rest) = words.split_last().expect("there is one");
    rest.iter().rev().fold(format!("{first:x}"), |mask, word| format!("{mask},{word:08x}"))
}

/// The CPUs of a mask such as `f` or `1,00000000`; `None` if it is not a mask.
pub fn masked_cpus(mask: &str) -> Option<Vec<usize>> {
    let digits: Vec<char> = mask.trim().chars().filter(|letter| *letter != ',').collect();
    if digits.is_empty() || digits.len() > CPUS_MAX / 4 {
        return None;
    }
    let mut cpus = Vec::new();
    for (place, digit) in digits.iter().rev().enumerate() {
        let digit = digit.to_digit(16)?;
        cpus.extend((0..4).filter(|bit| digit >> bit & 1 == 1).map(|bit| place * 4 + bit));
    }
    Some(cpus)
}

/// The CPUs of a list such as `0-3,8`; `None` if it is not such a list.
pub fn cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(cpu_number(first)?..=cpu_number(last)?);
    }
    (cpus.len() <= CPUS_MAX).then_some(cpus)
}

/// CPUs as a list such as `0-3,8`; the reverse of [`cpu_list`].
pub fn cpu_ranges(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*cpu) => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let written = ranges.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    written.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_set_is_larger_than_a_kernel_has() {
        assert_eq!((cpu_number("8191"), cpu_number("8192")), (Some(8191), None));
        assert_eq!((cpu_number("-1"), cpu_number("18446744073709551615")), (None, None));
        assert_eq!(cpu_mask([1, 18_446_744_073_709_551_615]), "2");
    }

    #[test]
    fn a_mask_has_words_of_32_bits() {
        for cpu in [0, 3, 31, 32, 70] {
            assert_eq!(masked_cpus(&cpu_mask([cpu])), Some(vec![cpu]), "{cpu}");
        }
        assert_eq!((cpu_mask([33]), cpu_mask([])), ("2,00000000".to_owned(), "0".to_owned()));
        assert_eq!((cpu_mask(0..2), cpu_mask(0..32)), ("3".to_owned(), "ffffffff".to_owned()));
        assert_eq!(cpu_mask(0..40), "ff,ffffffff");
        assert_eq!(masked_cpus("00000000,0000000d\n"), Some(vec![0, 2, 3]));
        assert_eq!((masked_cpus(""), masked_cpus("x1")), (None, None));
        assert_eq!(masked_cpus(&"f".repeat(5000)), None);
    }

    #[test]
    fn a_list_of_cpus_has_ranges() {
        assert_eq!(cpu_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list("7"), Some(vec![7]));
        for list in ["0-2,5", "7", "0,2,4-5"] {
            assert_eq!(cpu_ranges(&cpu_list(list).expect("sound").into_iter().collect()), list);
        }
        for list in ["", "0-", "x", "0-99999999", "3-1-2"] {
            assert_eq!(cpu_list(list), None, "{list}");
        }
    }
}
