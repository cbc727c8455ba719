//! Publishing: one event that a hundred endpoints want, against a batch of a hundred messages to one.

use std::time::Instant;

use postrider::{NewEvent, NewEventType, NewMessage, NewSubscription};

use super::bed::{Bed, HEALTHY, payload};
use super::lab::Lab;
use super::report::{BenchTarget, ReportRow, median};
use crate::failure::CommandError;

const SUBSCRIBERS: u32 = 100;
const EVENT: &str = "bench.happened";
/// As many as may wait for a subscriber that keeps up. A store is left after that.
const KEEPING_UP: u32 = 25;
const STORES_A_ROUND: usize = 2;

pub(super) async fn hundred_subscribers(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let mut fresh = Times::default();
    for round in 0..lab.scale.rounds * STORES_A_ROUND {
        lab.say(&format!("subscribers that keep up, store {}", round + 1));
        let store = lab.new_store().await?;
        let bed = with_subscribers(lab, Bed::open(&store).await?).await?;
        fresh.measure(&bed, KEEPING_UP).await?;
        drop(bed);
        lab.discard(store).await?;
    }
    let (backlog, behind) = behind(lab).await?;
    let row = |name, times: &Times, target, note| ReportRow {
        name,
        measured: 1.0 / median(&times.events),
        unit: "/s",
        yardstick: Some(("batches of 100", 1.0 / median(&times.batches))),
        target,
        note,
    };
    let keeping_up =
        format!("medians of {}; up to {KEEPING_UP} wait for each subscriber", fresh.events.len());
    let waiting = format!("medians of {}; {backlog} wait for each subscriber", behind.events.len());
    Ok(vec![
        row("publish to 100 subscribers", &fresh, BenchTarget::RatioAtLeast(0.50), keeping_up),
        row("publish to 100 that are behind", &behind, BenchTarget::None, waiting),
    ])
}

/// Each has a part of the index to itself by now, and an event goes into all of them.
async fn behind(lab: &mut Lab) -> Result<(u32, Times), CommandError> {
    let mut times = Times::default();
    let backlog = lab.scale.batches * 8;
    let store = lab.new_store().await?;
    let bed = with_subscribers(lab, Bed::open(&store).await?).await?;
    lab.say("subscribers that are behind");
    for number in 0..backlog {
        bed.store.publish(NewEvent::new(EVENT, payload(number))).await?;
    }
    times.measure(&bed, lab.scale.batches).await?;
    drop(bed);
    lab.discard(store).await?;
    Ok((backlog, times))
}

async fn with_subscribers(lab: &Lab, bed: Bed) -> Result<Bed, CommandError> {
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.store.create_event_type(NewEventType::new(EVENT)).await?;
    for number in 0..SUBSCRIBERS {
        let name = format!("subscriber-{number}");
        bed.create_paused(&name, lab.partner.url("/count")).await?;
        bed.store.subscribe(NewSubscription::new("bench.*", name)).await?;
    }
    Ok(bed)
}

/// In seconds.
#[derive(Default)]
struct Times {
    batches: Vec<f64>,
    events: Vec<f64>,
}

impl Times {
    /// One after the other, so that whatever else the machine does slows both.
    async fn measure(&mut self, bed: &Bed, count: u32) -> Result<(), CommandError> {
        for number in 0..count {
            let message = NewMessage::new(HEALTHY, payload(number));
            let began = Instant::now();
            bed.store.send_batch(vec![message; SUBSCRIBERS as usize]).await?;
            self.batches.push(began.elapsed().as_secs_f64());
            let event = NewEvent::new(EVENT, payload(number));
            let began = Instant::now();
            bed.store.publish(event).await?;
            self.events.push(began.elapsed().as_secs_f64());
        }
        Ok(())
    }
}
