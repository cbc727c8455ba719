//! This process, as /proc tells of it, under the names that every Prometheus client uses. What cannot be read is left out.

use postrider::store::Figure;

pub(super) fn figures() -> Vec<Figure> {
    let named = [
        ("process_cpu_seconds_total", cpu_seconds()),
        ("process_resident_memory_bytes", pages(1)),
        ("process_virtual_memory_bytes", pages(0)),
        ("process_open_fds", open_files()),
        ("process_max_fds", open_files_max()),
        ("process_start_time_seconds", started_at()),
    ];
    named.into_iter().filter_map(|(name, value)| Some(Figure::new(name, &[], value?))).collect()
}

fn cpu_seconds() -> Option<f64> {
    Some((stat(11)? + stat(12)?) / ticks())
}

/// Of /proc/self/statm: the size, what of it is resident.
fn pages(place: usize) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(place)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

fn open_files() -> Option<f64> {
    // Looking opens one.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

fn open_files_max() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The system counts from its own start.
fn started_at() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + stat(19)? / ticks())
}

/// A field of /proc/self/stat, counted from behind the name, which may contain anything.
fn stat(place: usize) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(place)?.parse().ok()
}

fn ticks() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_itself() {
        let figures = figures();
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).expect(name).value;
        let now = jiff::Timestamp::now().as_second() as f64;
        assert!((now - 86_400.0..=now + 1.0).contains(&value("process_start_time_seconds")));
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
