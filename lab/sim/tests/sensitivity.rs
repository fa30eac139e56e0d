//! A constant that is a fifth smaller or larger is noticed by a check, or it is known why not.

use copyrpc_sim::scenarios::sensitivity::{self, Model};

fn each_constant_is_noticed_or_known_not_to_matter(model: Model) {
    let outcome = sensitivity::run(model, 20.0, 1, |_, _| {}).unwrap();
    for effect in &outcome.effects {
        println!("{effect:?}");
        assert!(effect.is_noticed() || effect.reason().is_some(), "{effect:?}");
    }
}

/// What matters most is among the mutants, which every run of the tests judges.
#[test]
#[ignore = "long: minutes"]
fn constants_of_delegation_matter_or_it_is_known_why_not_long() {
    each_constant_is_noticed_or_known_not_to_matter(Model::Bistability);
}

#[test]
fn constants_of_two_ranks_matter_or_it_is_known_why_not() {
    each_constant_is_noticed_or_known_not_to_matter(Model::TwoRank);
}

#[test]
#[ignore = "slow: a run per constant"]
fn constants_of_reads_over_dc_matter_or_it_is_known_why_not_slow() {
    each_constant_is_noticed_or_known_not_to_matter(Model::Dct);
}
