//! What the demo sends and when, drawn from a seed. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::receiver::Outage;
use super::{ALERTS, ORDERS};

/// Sending takes this long, however many messages there are.
pub(super) const SENDING: Duration = Duration::from_secs(12);
/// Less than the rest a circuit takes: what is sent while it is open expires.
pub(super) const PERISHABLE_TTL: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) number: u32,
    pub(super) at: Duration,
    pub(super) endpoint: &'static str,
    pub(super) kind: PlannedKind,
    /// Ordering key and the place of the message within it.
    pub(super) key: Option<(String, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedKind {
    Ordinary,
    /// The receiver will never accept it.
    Poison,
    /// Worthless after a moment.
    Perishable,
}

impl PlannedKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Poison => "poison",
            Self::Perishable => "perishable",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct DemoPlan {
    pub(super) seed: u64,
    pub(super) keys: u32,
    pub(super) messages: Vec<Planned>,
    pub(super) orders_outage: Outage,
    pub(super) alerts_outage: Outage,
}

impl DemoPlan {
    pub(super) fn draw(count: u32, seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let keys = (count / 10).clamp(1, 300);
        let alerts_outage =
            Outage { begins: Duration::from_millis(2500), lasts: Duration::from_millis(1500) };
        let orders_outage =
            Outage { begins: Duration::from_millis(5500), lasts: Duration::from_millis(1000) };
        let mut places = vec![0; keys as usize];
        let mut messages: Vec<Planned> = (0..count)
            .map(|number| {
                let at = SENDING.mul_f64(f64::from(number) / f64::from(count));
                draw_one(number, at, &mut places, alerts_outage, &mut dice)
            })
            .collect();
        // Small runs too show every fate.
        messages[2].kind = PlannedKind::Poison;
        Self { seed, keys, messages, orders_outage, alerts_outage }
    }

    pub(super) fn outage(&self, endpoint: &str) -> Outage {
        if endpoint == ORDERS { self.orders_outage } else { self.alerts_outage }
    }
}

fn draw_one(number: u32, at: Duration, places: &mut [u32], outage: Outage, dice: &mut StdRng) -> Planned {
    let poison = dice.random_bool(0.003);
    if dice.random_bool(0.5) {
        let key = dice.random_range(0..places.len());
        places[key] += 1;
        let kind = if poison { PlannedKind::Poison } else { PlannedKind::Ordinary };
        let key = Some((format!("customer-{key:03}"), places[key]));
        return Planned { number, at, endpoint: ORDERS, kind, key };
    }
    let circuit_is_open =
        at > outage.begins + Duration::from_millis(500) && at < outage.begins + outage.lasts;
    let kind = match (poison, circuit_is_open && dice.random_bool(0.2)) {
        (true, _) => PlannedKind::Poison,
        (false, true) => PlannedKind::Perishable,
        (false, false) => PlannedKind::Ordinary,
    };
    Planned { number, at, endpoint: ALERTS, kind, key: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_draws_one_plan_with_every_fate_in_it() {
        let plan = DemoPlan::draw(3000, 7);
        assert_eq!(plan.messages, DemoPlan::draw(3000, 7).messages);
        assert_ne!(plan.messages, DemoPlan::draw(3000, 8).messages);
        for kind in [PlannedKind::Ordinary, PlannedKind::Poison, PlannedKind::Perishable] {
            assert!(plan.messages.iter().any(|planned| planned.kind == kind), "{kind:?}");
        }
    }
}
