//! Publishing: one event that a hundred endpoints want, against a batch of a hundred messages.

use std::time::Instant;

use postrider::{NewEvent, NewEventType, NewMessage, NewSubscription};

use super::bed::{Bed, HEALTHY, payload};
use super::lab::Lab;
use super::report::{Row, Target, median};
use crate::failure::Failure;

const SUBSCRIBERS: u32 = 100;
const EVENT: &str = "bench.happened";

pub(super) async fn hundred_subscribers(lab: &mut Lab) -> Result<Vec<Row>, Failure> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.store.create_event_type(NewEventType::new(EVENT)).await?;
    for number in 0..SUBSCRIBERS {
        let name = format!("subscriber-{number}");
        bed.create_paused(&name, lab.partner.url("/count")).await?;
        bed.store.subscribe(NewSubscription::new("bench.*", name)).await?;
    }
    let times = lab.scale.batches * 4;
    let (mut batches, mut events) = (Vec::new(), Vec::new());
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "send_batch");
        let began = Instant::now();
        for number in 0..times {
            let message = NewMessage::new(HEALTHY, payload(number));
            bed.store.send_batch(vec![message; SUBSCRIBERS as usize]).await?;
        }
        batches.push(f64::from(times) / began.elapsed().as_secs_f64());
        lab.say_round(round, "publish");
        let began = Instant::now();
        for number in 0..times {
            bed.store.publish(NewEvent::new(EVENT, payload(number))).await?;
        }
        events.push(f64::from(times) / began.elapsed().as_secs_f64());
    }
    drop(bed);
    lab.discard(store).await?;
    Ok(vec![Row {
        name: "publish to 100 subscribers",
        measured: median(&events),
        unit: "/s",
        yardstick: Some(("batches of 100", median(&batches))),
        target: Target::RatioAtLeast(0.50),
        note: "a hundred endpoints, against one that gets a batch; all paused".to_owned(),
    }])
}
