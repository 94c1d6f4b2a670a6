//! The kernel's statistics of a TCP connection, as getsockopt(2) and sock_diag(7) give them.

/// Statistics of a connection. Times are totals since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) delivery_rate_bytes_per_s: u64,
    /// The rate was measured while the sender had too little to send.
    pub(crate) rate_app_limited: bool,
    pub(crate) busy_us: u64,
    pub(crate) rwnd_limited_us: u64,
    pub(crate) sndbuf_limited_us: u64,
    pub(crate) notsent_bytes: u32,
    /// Largest segment that is sent.
    pub(crate) segment_bytes: u32,
    /// Smoothed round trip, and the shortest one of the last minutes.
    pub(crate) rtt_us: u32,
    pub(crate) rtt_min_us: u32,
    pub(crate) acked_bytes: u64,
    pub(crate) data_segments_sent: u32,
    pub(crate) segments_sent_again: u32,
}

impl TcpInfo {
    /// Length of the beginning of linux/tcp.h's `struct tcp_info` up to the last field used. The
    /// structure only ever grows at its end.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(crate) const RAW_LEN: usize = 192;

    /// Reads the fields out of the kernel's structure. What an older kernel does not give is 0.
    pub(crate) fn from_raw(raw: &[u8]) -> Self {
        let u32_at =
            |at: usize| raw.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().unwrap_or_default()));
        let u64_at =
            |at: usize| raw.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()));
        Self {
            delivery_rate_bytes_per_s: u64_at(160),
            // Behind seven states of a byte each. Bit 0: the delivery rate is application limited.
            rate_app_limited: raw.get(7).is_some_and(|flags| flags & 1 == 1),
            busy_us: u64_at(168),
            rwnd_limited_us: u64_at(176),
            sndbuf_limited_us: u64_at(184),
            notsent_bytes: u32_at(144),
            segment_bytes: u32_at(16),
            rtt_us: u32_at(68),
            rtt_min_us: u32_at(148),
            acked_bytes: u64_at(120),
            data_segments_sent: u32_at(156),
            segments_sent_again: u32_at(100),
        }
    }
}
