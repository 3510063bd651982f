//! Figures of this process, for printing.

/// Processor time of this process in seconds: on a busy machine it says more than a clock.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok());
    // User and system time, in ticks of 10 ms.
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

/// A line of this process's memory figures, such as `VmRSS:`; 0 where there is none.
pub fn status_bytes(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rest = status.lines().find_map(|text| text.strip_prefix(line));
    let kib = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
