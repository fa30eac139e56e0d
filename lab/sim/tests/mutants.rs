//! Checks of the models fail for models that are wrong on purpose.

use copyrpc_sim::scenarios::{mutants::WRONG_MODELS, sensitivity::Model};

/// Judges the mutants of a model.
fn only_known_ones_survive(model: Model) {
    for wrong in WRONG_MODELS.iter().filter(|wrong| wrong.model() == model) {
        let judged = wrong.judge(1);
        println!("{judged:?}");
        assert!(judged.is_as_expected(), "{judged:?}");
    }
}

#[test]
fn mutants_of_delegation_have_other_states() {
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
