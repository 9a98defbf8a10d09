//! Published figures and the model: which are met, which are predicted, and which stay ranges.

use ringway_model::published::{Figure, Role, figures};

fn of(what: &str) -> Vec<Figure> {
    let figures = figures().expect("they do not contradict each other");
    figures.into_iter().filter(|figure| figure.what == what).collect()
}

#[test]
fn the_node_is_predicted_within_5_percent_from_two_points() {
    let predicted = |source| {
        let all = figures().expect("they do not contradict each other").into_iter();
        let own = all.filter(move |it| it.source == source && it.role == Role::Predicted);
        own.map(|figure| figure.error().expect("two points identify it")).collect::<Vec<_>>()
    };
    let new = predicted("network-node-blog:new-kernel");
    assert!(new.len() == 3 && new.iter().all(|error| error.abs() < 0.05), "{new:?}");
    let old = predicted("network-node-blog:old-kernel");
    assert!(old.len() == 2 && old.iter().all(|error| error.abs() < 0.05), "{old:?}");
}

#[test]
fn intervals_of_what_is_predicted_of_the_node_contain_what_was_published() {
    let all = figures().expect("they do not contradict each other").into_iter();
    let of_node = all.filter(|it| it.source.starts_with("network-node-blog"));
    for figure in of_node.filter(|it| it.role == Role::Predicted) {
        let model = figure.model.expect("it is predicted");
        let is_inside = model.low <= figure.published && figure.published <= model.high;
        assert!(is_inside, "{figure:?}");
    }
}

#[test]
fn calibrated_figures_are_met_and_framing_is_predicted_within_1_percent() {
    for figure in figures().expect("they do not contradict each other") {
        let error = figure.error().unwrap_or(0.0).abs();
        if matches!(figure.role, Role::CalibratedOn | Role::Fitted) {
            assert!(error < 0.001, "{figure:?}");
        }
    }
    for what in [
        "transmit: line rate",
        "Arm64: domain 0",
        "transmit, 1 stream: 8 queues against 1",
        "receive, 1 stream: 8 queues against 1",
    ] {
        let error = of(what)[0].error().expect("it needs no measurement of queues");
        assert!(error.abs() < 0.01, "{what}: {error}");
    }
}

#[test]
fn what_is_not_identified_is_a_range_that_contains_the_figure() {
    for figure in figures().expect("they do not contradict each other") {
        let Some(model) = figure.model.filter(|_| figure.role == Role::NotPredicted) else {
            continue;
        };
        assert_eq!(model.value, None, "{figure:?}");
        let (low, high) = (model.low * 0.94, model.high * 1.07);
        assert!(low <= figure.published && figure.published <= high, "{figure:?}");
    }
    assert!(of("receive: 8 queues, 8 streams").iter().any(|it| it.role == Role::Fitted));
}
