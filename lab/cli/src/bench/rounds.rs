//! How often the cells of a benchmark are measured.

use std::time::Duration;

use clap::Args as ClapArgs;
use config::units::parse_duration_ns;
use measure::rounds::Rounds;

/// Samples per cell, to be quick.
const RUNS_QUICK: u32 = 3;

/// Options for the number of rounds.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct RoundArgs {
    /// Samples per cell [default: until the ratios are known to 5 % or --time is over, 6 at least; with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Time of the whole command, about; 6 rounds are measured in any case.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time, conflicts_with = "runs")]
    time: Duration,
}

impl RoundArgs {
    /// The plan that they ask for.
    pub(crate) fn plan(self, is_quick: bool) -> Rounds {
        match self.runs {
            Some(runs) => Rounds::Exactly(runs),
            None if is_quick => Rounds::Exactly(RUNS_QUICK),
            None => Rounds::Known(self.time),
        }
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())
}
