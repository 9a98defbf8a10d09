use super::*;
use crate::setup::Setup;
use crate::topology::{Blueprint, unsupported};

fn transmit() -> Study {
    shipped("transmit").expect("it is shipped")
}

#[test]
fn every_shipped_study_is_possible_and_survives_a_copy() {
    for id in ids() {
        let study = shipped(id).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(study.id, id);
        assert!(!study.sources.is_empty() && !study.figure.is_empty(), "{id}");
        assert_eq!(Study::parse("the copy", &study.to_toml()).expect("it was good"), study);
        let quick = study.quick();
        assert_eq!(Study::parse("the copy", &quick.to_toml()).expect("it is possible"), quick);
        assert!(!quick.figure.is_empty(), "{id}");
    }
}

#[test]
fn quick_has_time_to_measure_every_cell_once() {
    for id in ids() {
        let study = shipped(id).expect("it is shipped").quick();
        let cells = study.matrix().count();
        // The time that a tool takes to start and end, and the topology to change, on a busy
        // machine.
        let overhead_seconds = 2.5;
        let each = study.load.seconds + study.load.warmup_seconds + overhead_seconds;
        let seconds = f64::from(u32::try_from(cells).unwrap()) * each;
        assert!(seconds <= study.load.budget_seconds.unwrap(), "{id}: {seconds} s");
    }
}

#[test]
fn a_whole_study_takes_an_evening_at_most_and_has_every_cell_within_half_an_hour() {
    for id in ids() {
        let study = shipped(id).expect("it is shipped");
        let round = crate::plan::Plan::new(&study, 5.0, 1).progress(&[]).seconds();
        let evening = study.load.budget_seconds.expect(id);
        assert!(evening <= 6.0 * 3600.0 && round <= evening, "{id}: {round} s");
        let once = round / f64::from(study.load.repeats);
        assert!(once <= 1800.0, "{id}: {once} s");
    }
}

#[test]
fn the_matrix_is_all_combinations_and_baselines_have_fewer_axes() {
    let study = transmit();
    assert_eq!(study.cells(Subject::Ringway).len(), 16);
    assert_eq!(study.cells(Subject::TapRelay).len(), 4);
    let cell = Cell::default().with("queues", 4).with("streams", 8);
    assert_eq!(study.label(&cell), "q4.s8");
    assert_eq!(study.cell_of_label("q4.s8"), Some(cell.clone()));
    assert_eq!(study.cell_of_label("s8.q4"), Some(cell.clone()));
    assert_eq!(study.cell_of_label("q5.s8"), None);
    assert_eq!(study.label(&study.projected(&cell, Subject::VethBridge)), "s8");
    assert_eq!(study.setup(&cell).text("tool"), Some("iperf3"));
    assert_eq!(study.setup(&cell).number("queues"), Some(4));
}

#[test]
fn a_bundle_gives_a_cell_its_parameters() {
    let study = shipped("latency").expect("it is shipped");
    let cell = study.cell_of_label("guest-asynchronous.iperf3").expect("a cell");
    assert_eq!(study.setup(&cell).number("unanswered"), Some(2));
    assert_eq!(study.setup(&cell).number("queues"), Some(1));
}

#[test]
fn more_queues_want_more_cpus_but_only_as_far_as_streams_reach() {
    let study = transmit();
    let wanted = |label: &str| study.cpus_wanted(&study.cell_of_label(label).expect(label));
    assert_eq!(wanted("q1.s1"), 4);
    assert_eq!(wanted("q8.s1"), 4);
    assert_eq!(wanted("q8.s8"), 18);
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let text = shipped_text("transmit").expect("it is shipped");
    for (from, to, word) in [
        ("values = [1, 2, 4, 8]", "values = [1, 99]", "from 1 to 64"),
        ("values = [1, 2, 4, 8]", "values = []", "no values"),
        ("values = [1, 2, 4, 8]", "values = [1, 1]", "twice"),
        ("name = \"queues\"", "name = \"quues\"", "there are queues"),
        ("short = \"q\"", "", "short"),
        ("repeats = 10", "repeats = 50", "max-repeats"),
        ("seconds = 60.0", "seconds = -1.0", "seconds"),
        ("x = \"streams\"", "x = \"guests\"", "no axis"),
        ("cell = { queues = 4 }", "cell = { queues = 3 }", "not in the matrix"),
        ("best-of = \"streams\"", "", "no `streams`"),
        ("line = \"none\"", "line = \"fast\"", "10G"),
        ("sources =", "suorces =", "suorces"),
        ("metric = \"throughput-bps\"", "metric = \"speed\"", "there is no metric"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Study::parse("mine.toml", &text.replacen(from, to, 1)).expect_err(to);
        let error = error.to_string();
        assert!(error.starts_with("mine.toml") && error.contains(word), "{to}: {error}");
    }
    assert!(shipped("transmitt").expect_err("unknown").to_string().contains("guest-to-guest"));
}

#[test]
fn quick_keeps_the_cells_of_published_figures() {
    for id in ["transmit", "receive", "guest-to-guest", "network-node-vxlan"] {
        let study = shipped(id).expect("it is shipped");
        let all =
            |study: &Study| study.published.iter().filter(|one| one.not_used.is_none()).count();
        assert!(all(&study) > 0, "{id}");
        assert_eq!(all(&study.quick()), all(&study), "{id}");
    }
}

#[test]
fn figures_of_other_set_ups_stand_in_reports_and_are_not_compared() {
    let of = |id: &str, source: &str| {
        let study = shipped(id).expect("it is shipped");
        let of = study.published.into_iter().filter(|one| one.source == source);
        of.collect::<Vec<_>>()
    };
    let [interrupt] = &of("latency", "arm64-latency-report:rx")[..] else { panic!("one") };
    assert_eq!((interrupt.low, interrupt.is_used()), (Some(30.0), false));
    let tenants = of("aggregate", "network-node-blog:starving");
    assert_eq!(tenants.len(), 2);
    assert!(tenants.iter().all(|one| one.high == Some(2e9) && !one.is_used()));
    for id in ["network-node", "network-node-vxlan"] {
        let [ideal] = &of(id, "network-node-blog:ideal")[..] else { panic!("one in {id}") };
        assert_eq!((ideal.value, ideal.is_used()), (Some(20e9), false));
    }
}

#[test]
fn two_ports_of_ten_gigabits_are_a_cell_of_the_node() {
    let study = shipped("network-node").expect("it is shipped");
    let setup = |label: &str| {
        Setup::of(&study, &study.cell_of_label(label).expect(label)).expect("it means something")
    };
    let bond = setup("t12.q8.virtio-bond");
    assert_eq!((bond.lines, bond.line_bps), (2, Some(10_000_000_000)));
    assert_eq!((setup("t12.q8.virtio").lines, setup("t12.q8.virtio").line_bps), (1, None));
    // Two lines without a rate are as good as one.
    let text = shipped_text("network-node").expect("it is shipped");
    let text = text.replacen("line = \"10G\"\nlines = 2", "lines = 2", 1);
    let study = Study::parse("a copy", &text).expect("it is a study");
    let why = unsupported(&study).expect("it cannot be built");
    assert!(why.contains("no second line without a rate"), "{why}");
}

#[test]
fn pairs_of_guests_have_the_recommended_numbers() {
    let study = shipped("aggregate").expect("it is shipped");
    let kind = |label: &str| {
        let setup = Setup::of(&study, &study.cell_of_label(label)?).expect("it means something");
        let built = Blueprint::of(study.topology.kind, Subject::VethBridge, &setup);
        Some(built.expect("it can be built").kind)
    };
    for label in ["g8.s2", "g4.s8"] {
        assert_eq!(kind(&format!("{label}.pairs")), Some(TopologyKind::Guests), "{label}");
        assert_eq!(kind(&format!("{label}.uplink")), Some(TopologyKind::Wire), "{label}");
    }
    assert_eq!((kind("g8.s8.pairs"), kind("g8.s8.uplink")), (None, Some(TopologyKind::Wire)));
    // Each of two guests has a vif. The rate of the wire does not limit them.
    let cell = study.cell_of_label("g1.s2.pairs").expect("a cell");
    assert_eq!(study.cpus_wanted(&cell), study.cpus_wanted(&cell.with("peers", "uplink")) + 2);
    let limited = study.with_line("1Gb/s").expect("it has a wire");
    let line = |cell: &Cell| Setup::of(&limited, cell).expect("it means something").line_bps;
    assert_eq!((line(&cell), line(&cell.with("peers", "uplink"))), (None, Some(1_000_000_000)));
}

#[test]
fn interrupts_on_one_cpu_are_an_axis_of_what_a_guest_receives() {
    let study = shipped("receive").expect("it is shipped");
    let setup = |label: &str| study.cell_of_label(label).map(|cell| study.setup(&cell));
    let layout = |label: &str| setup(label).and_then(|it| it.text("layout").map(str::to_owned));
    let of_one = setup("q8.s8.no-gro.guest-one-cpu").expect("a cell");
    assert_eq!(of_one.text("direction"), Some("receive"));
    // Both explanations of the published figure agree on q8.s8 and differ on these.
    for cell in ["q4.s8.no-gro", "q8.s4.no-gro"] {
        for word in ["free", "guest-one-cpu"] {
            assert_eq!(layout(&format!("{cell}.{word}")).as_deref(), Some(word), "{cell}");
        }
    }
    assert_eq!(layout("q8.s8.all.spread").as_deref(), Some("spread"));
    // With few streams it would only take time.
    for label in ["q8.s1.no-gro.guest-one-cpu", "q8.s4.all.spread"] {
        assert_eq!(setup(label), None, "{label}");
    }
    assert_eq!(study.cells(Subject::Ringway).len(), 32 + 8 + 9);
}

#[test]
fn some_values_are_in_some_cells_only() {
    let only = "[[only]]\ncell = { queues = 2 }\nwith = [{ streams = 4 }, { streams = 8 }]\n";
    let text = shipped_text("transmit").expect("it is shipped").to_owned() + only;
    let study = Study::parse("mine.toml", &text).expect("it is possible");
    // Two of sixteen cells are not in the matrix, and those of baselines have no queues.
    let count = |subject| study.cells(subject).len();
    assert_eq!((count(Subject::Ringway), count(Subject::TapRelay)), (14, 4));
    assert!(study.cell_of_label("q2.s4").is_some() && study.cell_of_label("q2.s2").is_none());
    assert_eq!(Study::parse("a copy", &study.to_toml()).expect("it is possible"), study);
    assert!(study != transmit() && !transmit().to_toml().contains("[[only]]"));
    let fault = |more: &str| Study::parse("mine.toml", &(text.clone() + more)).expect_err(more);
    let none = fault("[[only]]\ncell = {}\nwith = []\n").to_string();
    assert!(none.contains("no cell is left"), "{none}");
    let axis = fault("[[only]]\ncell = { mtu = 9000 }\nwith = []\n").to_string();
    assert!(axis.contains("`mtu` in only is not an axis"), "{axis}");
    // Eight queues are compared with other numbers of streams, too.
    let gone = fault("[[only]]\ncell = { queues = 8 }\nwith = [{ streams = 4 }]\n").to_string();
    assert!(gone.contains("its cell is not in the matrix, see `only`"), "{gone}");
}

#[test]
fn a_study_of_ones_own_needs_no_quick_form() {
    let text = shipped_text("transmit").expect("it is shipped");
    let (without, _) = text.split_once("\n[quick]").expect("it has one");
    let study = Study::parse("a study of one's own", without).expect("it is possible");
    assert_eq!(study.quick, Quick::default());
    assert_eq!(study.quick().matrix().count(), study.matrix().count());
    assert_eq!(Study::parse("its copy", &study.to_toml()).expect("it is possible"), study);
}

#[test]
fn a_record_of_before_ids_is_read() {
    let old = shipped_text("latency").expect("it is shipped");
    let old = old.replace("\nsources = [", "\nrows = [").replace("\nsource = ", "\nrow = ");
    let old = old.replace("\nsaid = ", "\nsource = ");
    let study = Study::parse("an old record", &old).expect("it is read");
    assert_eq!(study.published[0].source, "by netperf");
    let today = shipped("latency").expect("it is shipped");
    assert!(today != study && today.goes_on(&study));
    assert_eq!(Study::parse("its copy", &study.to_toml()).expect("it is read again"), study);
    assert!(!today.to_toml().contains("row = "));
}
