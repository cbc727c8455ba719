//! What was measured, against what, and whether the target is met.

use serde_json::{Value, json};

use crate::output::Output;

#[derive(Debug)]
pub(super) struct ReportRow {
    pub(super) name: &'static str,
    pub(super) measured: f64,
    pub(super) unit: &'static str,
    /// What it is compared with, in words and in the same unit.
    pub(super) yardstick: Option<(&'static str, f64)>,
    pub(super) target: BenchTarget,
    pub(super) note: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BenchTarget {
    /// Measured divided by the yardstick.
    RatioAtLeast(f64),
    AtLeast(f64),
    Below(f64),
    /// Measured minus the yardstick.
    AboveYardstickBelow(f64),
    /// Told, and never missed.
    None,
}

impl ReportRow {
    fn ratio(&self) -> Option<f64> {
        let (_, yardstick) = self.yardstick?;
        (yardstick > 0.0).then(|| self.measured / yardstick)
    }

    pub(super) fn passes(&self) -> bool {
        match self.target {
            BenchTarget::RatioAtLeast(least) => self.ratio().is_some_and(|ratio| ratio >= least),
            BenchTarget::AtLeast(least) => self.measured >= least,
            BenchTarget::Below(most) => self.measured < most,
            BenchTarget::AboveYardstickBelow(most) => {
                self.yardstick.is_some_and(|(_, yardstick)| self.measured - yardstick < most)
            }
            BenchTarget::None => true,
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.target, self.passes()) {
            (BenchTarget::None, _) => "",
            (_, true) => "pass",
            (_, false) => "MISS",
        }
    }

    fn target_text(&self) -> String {
        match self.target {
            BenchTarget::RatioAtLeast(least) => format!("≥ {:.0} %", least * 100.0),
            BenchTarget::AtLeast(least) => format!("≥ {} {}", figure(least), self.unit),
            BenchTarget::Below(most) => format!("< {} {}", figure(most), self.unit),
            BenchTarget::AboveYardstickBelow(most) => format!("< {} {} above", figure(most), self.unit),
            BenchTarget::None => "-".to_owned(),
        }
    }

    fn json(&self, scenario: &str) -> Value {
        json!({
            "scenario": scenario,
            "name": self.name,
            "measured": self.measured,
            "unit": self.unit,
            "yardstick": self.yardstick.map(|(_, value)| value),
            "yardstick_is": self.yardstick.map(|(name, _)| name),
            "ratio": self.ratio(),
            "target": self.target_text(),
            "pass": self.passes(),
            "note": self.note,
        })
    }

    fn cells(&self, scenario: &str) -> Vec<String> {
        vec![
            scenario.to_owned(),
            self.name.to_owned(),
            format!("{} {}", figure(self.measured), self.unit),
            self.yardstick
                .map_or("-".to_owned(), |(name, value)| format!("{} {} {name}", figure(value), self.unit)),
            self.ratio().map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0)),
            self.target_text(),
            self.verdict().to_owned(),
            self.note.clone(),
        ]
    }
}

/// What was measured in each round, and its yardstick.
#[derive(Default)]
pub(super) struct Rounds(Vec<(f64, f64)>);

impl Rounds {
    pub(super) fn add(&mut self, measured: f64, yardstick: f64) {
        self.0.push((measured, yardstick));
    }

    /// The round in the middle by its ratio: from one round to the next the speed of a shared machine changes more than
    /// within one.
    pub(super) fn middle(&self) -> (f64, f64) {
        let mut sorted = self.0.clone();
        sorted.sort_by(|(a, of_a), (b, of_b)| (a / of_a).total_cmp(&(b / of_b)));
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    pub(super) fn ratio(&self) -> f64 {
        let (measured, yardstick) = self.middle();
        measured / yardstick
    }
}

pub(super) struct BenchReport {
    quick: bool,
    rows: Vec<(String, ReportRow)>,
}

impl BenchReport {
    pub(super) fn new(quick: bool) -> Self {
        Self { quick, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, scenario: &str, rows: Vec<ReportRow>) {
        self.rows.extend(rows.into_iter().map(|row| (scenario.to_owned(), row)));
    }

    pub(super) fn misses(&self) -> Vec<String> {
        self.rows.iter().filter(|(_, row)| !row.passes()).map(|(scenario, _)| scenario.clone()).collect()
    }

    pub(super) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|(scenario, row)| row.json(scenario)).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "release_build": !cfg!(debug_assertions),
            "quick": self.quick,
            "cores": cores,
            "misses": self.misses(),
            "rows": rows,
        })
    }

    pub(super) fn text(&self, output: Output) -> String {
        let header = ["scenario", "what", "measured", "yardstick", "ratio", "target", "", "note"];
        let rows = self.rows.iter().map(|(scenario, row)| row.cells(scenario)).collect();
        let mut text = output.table(&header, rows);
        if self.quick {
            text.push_str("\n--quick: too few messages and rounds for figures to quote");
        }
        text
    }
}

/// Three digits are as much as a noisy machine can vouch for.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => {
            let whole = format!("{value:.0}");
            let split = whole.len().saturating_sub(3);
            format!("{} {}", &whole[..split], &whole[split..])
        }
        middle if middle >= 100.0 => format!("{value:.0}"),
        small if small >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// 0 when there are no values.
pub(super) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_round_is_one_that_was_measured() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.middle(), (0.0, 0.0));
        rounds.add(8.0, 10.0);
        assert_eq!(rounds.middle(), (8.0, 10.0));
        // A slow moment: both numbers are small, and the ratio is what it was.
        rounds.add(3.5, 5.0);
        rounds.add(9.0, 10.0);
        assert_eq!(rounds.middle(), (8.0, 10.0));
        rounds.add(6.0, 10.0);
        assert_eq!(rounds.middle(), (3.5, 5.0), "of two in the middle the lower one");
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&values), 3.0);
        assert_eq!(percentile(&values, 0.99), 5.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_row_passes_by_its_own_kind_of_target() {
        let row = |target| ReportRow {
            name: "x",
            measured: 50.0,
            unit: "/s",
            yardstick: Some(("bare", 100.0)),
            target,
            note: String::new(),
        };
        assert!(
            row(BenchTarget::RatioAtLeast(0.5)).passes() && !row(BenchTarget::RatioAtLeast(0.51)).passes()
        );
        assert!(row(BenchTarget::AtLeast(50.0)).passes() && !row(BenchTarget::AtLeast(51.0)).passes());
        assert!(row(BenchTarget::Below(51.0)).passes() && !row(BenchTarget::Below(50.0)).passes());
        assert!(row(BenchTarget::AboveYardstickBelow(1.0)).passes());
        assert!(row(BenchTarget::None).passes() && row(BenchTarget::None).verdict().is_empty());
    }
}
