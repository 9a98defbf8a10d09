//! The closed network of queues, beside the results of a queueing package: `qncmmva` and `qncsmva`
//! of the package `queueing` 1.2.7 for Octave 7.3, exact mean value analysis of several classes. A
//! class is a queue's chunks, with a station of its own, one that all visit, and a delay.

use ringway_model::closed::{Times, rates};

#[test]
fn rates_are_those_of_the_package() {
    let times = |own, shared, delay| Times { own, shared, delay };
    let cases: [(&[usize], Times, &[f64]); 5] = [
        (&[3, 2], times(1.0, 0.4, 0.3), &[0.894_844_135_082, 0.764_784_237_431]),
        (&[4, 4, 4], times(0.12, 0.05, 0.05), &[6.408_272_905_29; 3]),
        (&[8, 4, 1], times(2e-4, 6e-5, 5e-5), &[4_993.126_038_43, 4_781.316_997, 2_551.154_381_51]),
        (
            &[4, 4, 2, 2],
            times(0.1, 0.04, 0.0),
            &[7.611_929_109_55, 7.611_929_109_55, 4.768_316_860_52, 4.768_316_860_52],
        ),
        (&[16], times(1.0, 0.4, 5.0), &[0.999_594_846_758]),
    ];
    for (chunks, times, package) in cases {
        let ours = rates(chunks, times);
        let near = |(ours, theirs): (&f64, &f64)| (ours / theirs - 1.0).abs() < 1e-10;
        assert!(ours.iter().zip(package).all(near), "{chunks:?}: {ours:?} {package:?}");
    }
}

/// Chunks per second of one queue, by exact mean value analysis of one class.
fn one_class(chunks: u32, times: Times) -> f64 {
    let (mut at_own, mut at_shared, mut rate) = (0.0, 0.0, 0.0);
    for count in 1..=chunks {
        let own = times.own * (1.0 + at_own);
        let shared = times.shared * (1.0 + at_shared);
        rate = f64::from(count) / (own + shared + times.delay);
        (at_own, at_shared) = (rate * own, rate * shared);
    }
    rate
}

#[test]
fn many_chunks_in_a_long_delay_have_a_rate() {
    for chunks in [1_u32, 31, 200, 512] {
        for own in [0.0, 1e-6, 0.58e-3, 5e-3] {
            for delay in [50e-6, 20e-3, 1.0] {
                let times = Times { own, shared: own / 4.0, delay };
                let number = usize::try_from(chunks).expect("small");
                let (ours, exact) = (rates(&[number], times)[0], one_class(chunks, times));
                assert!((ours / exact - 1.0).abs() < 1e-9, "{chunks} {times:?}: {ours} {exact}");
            }
        }
    }
}
