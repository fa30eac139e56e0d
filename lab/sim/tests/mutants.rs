//! Checks of the models fail for models that are wrong on purpose.

use copyrpc_sim::{
    machine::{CONNECT_X7, Constants as _},
    scenarios::{mutants::WRONG_MODELS, sensitivity::Model},
};

/// Judges the mutants of a model.
fn only_known_ones_survive(model: Model) {
    for wrong in WRONG_MODELS.iter().filter(|wrong| wrong.model() == model) {
        let judged = wrong.judge(1).unwrap();
        println!("{judged:?}");
        assert!(judged.is_as_expected(), "{judged:?}");
    }
}

/// So the mutants that every run judges have a fifth less and a fifth more of each of them.
#[test]
fn each_constant_of_delegation_that_matters_has_mutants_both_ways() {
    let is_among = |constant, factor| {
        WRONG_MODELS.iter().any(|wrong| wrong.constant() == Some((constant, factor)))
    };
    for (constant, _) in CONNECT_X7.constants() {
        let matters = Model::Bistability.unnoticed(constant).is_none();
        for factor in [0.8, 1.2] {
            assert_eq!(is_among(constant, factor), matters, "{constant} times {factor}");
        }
    }
}

#[test]
#[ignore = "slow: a run per mutant of the model"]
fn mutants_of_delegation_have_other_states_slow() {
    only_known_ones_survive(Model::Bistability);
}

#[test]
fn mutants_of_two_ranks_have_other_numbers() {
    only_known_ones_survive(Model::TwoRank);
}

#[test]
fn mutants_of_reads_over_dc_have_other_numbers() {
    only_known_ones_survive(Model::Dct);
}
