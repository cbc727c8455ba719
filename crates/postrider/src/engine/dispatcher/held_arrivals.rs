//! A message that was sent after a change of its endpoint is delivered by the change, so arrivals after a change wait until it
//! is loaded. Claims that the dispatcher makes itself do not wait. Pure.

use std::mem;

use crate::store::Arrival;

/// More than arrive during a reload, which takes milliseconds. Above it arrivals wait no longer.
const HELD_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct HeldArrivals {
    arrivals: Vec<Arrival>,
    /// A change came that no reload has begun to load.
    change_waits: bool,
    /// The running reload loads a change.
    change_loads: bool,
    /// How many came before the running reload began: it loads every change before them.
    before_reload: usize,
}

impl HeldArrivals {
    /// The arrival, unless it has to wait. News of changes do not wait.
    pub(super) fn pass(&mut self, arrival: Arrival) -> Option<Arrival> {
        let holds = self.change_waits || self.change_loads;
        match arrival {
            Arrival::Reconfigured => self.change_waits = true,
            Arrival::CircuitMoved => {}
            Arrival::Claimed(_) | Arrival::Pending(_) | Arrival::Outside if holds => {
                self.arrivals.push(arrival);
                return None;
            }
            Arrival::Claimed(_) | Arrival::Pending(_) | Arrival::Outside => {}
        }
        Some(arrival)
    }

    pub(super) fn is_full(&self) -> bool {
        self.arrivals.len() >= HELD_MAX
    }

    pub(super) fn reload_began(&mut self) {
        self.change_loads = mem::take(&mut self.change_waits);
        self.before_reload = self.arrivals.len();
    }

    /// What waits no longer. After a change during the reload that is only what came before the reload.
    pub(super) fn reload_ended(&mut self) -> Vec<Arrival> {
        if !self.change_waits {
            return self.take_all();
        }
        self.change_loads = false;
        self.arrivals.drain(..mem::take(&mut self.before_reload)).collect()
    }

    /// Nothing waits until the next change.
    pub(super) fn take_all(&mut self) -> Vec<Arrival> {
        mem::take(self).arrivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointId;

    fn held(held: &mut HeldArrivals, endpoint: i64) -> bool {
        held.pass(Arrival::Pending(EndpointId(endpoint))).is_none()
    }

    fn endpoints(arrivals: Vec<Arrival>) -> Vec<i64> {
        let endpoint = |arrival: &Arrival| match arrival {
            Arrival::Pending(endpoint) => endpoint.0,
            other => panic!("{other:?}"),
        };
        arrivals.iter().map(endpoint).collect()
    }

    #[test]
    fn arrivals_after_a_change_wait_for_a_reload_that_began_after_it() {
        let mut arrivals = HeldArrivals::default();
        assert!(!held(&mut arrivals, 1));
        arrivals.reload_began();
        assert!(arrivals.pass(Arrival::Reconfigured).is_some());
        assert!(held(&mut arrivals, 2));
        assert_eq!(endpoints(arrivals.reload_ended()), [0; 0]);
        arrivals.reload_began();
        assert!(held(&mut arrivals, 3));
        assert!(arrivals.pass(Arrival::Reconfigured).is_some());
        assert!(held(&mut arrivals, 4));
        assert_eq!(endpoints(arrivals.reload_ended()), [2], "a change came before the others");
        arrivals.reload_began();
        assert_eq!(endpoints(arrivals.reload_ended()), [3, 4]);
        assert!(!held(&mut arrivals, 5));
    }

    #[test]
    fn a_moved_circuit_holds_nothing_and_prolongs_no_wait() {
        let mut arrivals = HeldArrivals::default();
        assert!(arrivals.pass(Arrival::CircuitMoved).is_some());
        assert!(!held(&mut arrivals, 1));
        assert!(arrivals.pass(Arrival::Reconfigured).is_some());
        arrivals.reload_began();
        assert!(held(&mut arrivals, 2));
        assert!(arrivals.pass(Arrival::CircuitMoved).is_some());
        assert_eq!(endpoints(arrivals.reload_ended()), [2]);
        assert!(!held(&mut arrivals, 3));
    }

    #[test]
    fn what_is_held_has_a_limit() {
        let mut arrivals = HeldArrivals::default();
        assert!(arrivals.pass(Arrival::Reconfigured).is_some());
        arrivals.reload_began();
        for endpoint in 0..HELD_MAX {
            assert!(!arrivals.is_full() && held(&mut arrivals, endpoint as i64));
        }
        assert!(arrivals.is_full());
        assert_eq!(arrivals.take_all().len(), HELD_MAX);
        assert!(!held(&mut arrivals, 1));
        assert!(arrivals.pass(Arrival::Reconfigured).is_some());
        assert!(held(&mut arrivals, 2));
        assert_eq!(endpoints(arrivals.reload_ended()), [0; 0], "the running reload began before the change");
    }
}
