//! The life of a transfer: signals, calibration, progress bar, background measurement, time, and
//! what is kept afterwards. `send`, `recv`, `pipe` and `cp` have one.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use narrows::calibration::Calibration;
use narrows::monitor::expectation::Expectation;
use narrows::policy::Policy;
use narrows::receiver::RecvSummary;
use narrows::sender::Summary;
use narrows::stream::{self, Control, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows_host::calibration::{self, Background, MEASURE_AFTER};
use narrows_host::peers::Peer;
use narrows_host::signals;

use crate::args::FlowArgs;
use crate::flow;
use crate::progress::Bar;

/// A transfer that a signal stops.
pub(crate) struct Transfer {
    pub(crate) control: Arc<Control>,
}

/// A transfer that sends.
pub(crate) struct Sending {
    control: Arc<Control>,
    flow: FlowArgs,
    verbose: bool,
    calibration: Option<Calibration>,
    /// Measure this host meanwhile, if that was never done.
    measures: bool,
    /// The peer whose memory is used and kept, and what is known of it.
    peer: Option<Peer>,
    expectation: Option<Expectation>,
}

/// A flow that was sent.
pub(crate) struct Sent {
    pub(crate) summary: Summary,
    pub(crate) elapsed: Duration,
    pub(crate) policy: Box<dyn Policy>,
}

/// A flow that was received.
pub(crate) struct Received {
    pub(crate) summary: RecvSummary,
    pub(crate) elapsed: Duration,
}

impl Transfer {
    /// From here on signals stop it.
    pub(crate) fn begin() -> Result<Self> {
        let control = Arc::new(Control::default());
        signals::stop(&control)?;
        Ok(Self { control })
    }

    /// Loads the calibration. `measures`: a link is crossed, so it is worth knowing this host.
    pub(crate) fn sending(&self, flow: FlowArgs, verbose: bool, measures: bool) -> Sending {
        let calibration = calibration::load(verbose);
        let control = Arc::clone(&self.control);
        Sending { control, flow, verbose, calibration, measures, peer: None, expectation: None }
    }

    /// Receives one flow; `bar` ends with it.
    pub(crate) fn receive(
        &self,
        sink: impl Write + Send + 'static,
        link: Link,
        options: ReceiveOptions,
        commit: impl FnOnce() -> io::Result<()>,
        bar: Bar,
    ) -> narrows::Result<Received> {
        let begun = Instant::now();
        let received = stream::receive_then(sink, link, options.control(&self.control), commit);
        let elapsed = begun.elapsed();
        bar.end();
        received.map(|summary| Received { summary, elapsed })
    }
}

impl Sending {
    /// Uses and keeps what transfers to this peer find; `None`: neither.
    pub(crate) fn with_peer(self, peer: Option<Peer>) -> Self {
        let peer = peer.map(|peer| peer.verbose(self.verbose));
        let expectation = peer.as_ref().and_then(Peer::recall);
        Self { peer, expectation, ..self }
    }

    /// The options of the command line, with a stall timeout in seconds (0: none).
    pub(crate) fn options(&self, timeout_s: f64) -> Result<SendOptions> {
        let options = flow::send_options(&self.flow, self.calibration.as_ref(), timeout_s)?;
        Ok(options.expect(self.expectation.as_ref()))
    }

    /// Sends one flow; `bar` ends with it.
    pub(crate) fn send(
        &self,
        source: impl Read + Send + 'static,
        link: Link,
        options: SendOptions,
        bar: Bar,
    ) -> narrows::Result<Sent> {
        let background = Background::default();
        let options = match self.measures && self.calibration.is_none() {
            true => options.later(MEASURE_AFTER, background.starter()),
            false => options,
        };
        let begun = Instant::now();
        let sent = stream::send(source, link, options.control(&self.control));
        let elapsed = begun.elapsed();
        bar.end();
        background.end();
        sent.map(|(summary, policy)| Sent { summary, elapsed, policy })
    }

    /// Keeps what a transfer that succeeded has learned: in the calibration, in the memory of its
    /// peer, and in the file of the policy.
    pub(crate) fn finish(self, sent: &Sent) -> Result<()> {
        if let Some(peer) = &self.peer {
            peer.remember(sent.summary.link, &sent.policy.kinds());
        }
        calibration::refresh(self.calibration, &sent.policy.learned(), self.verbose);
        flow::keep(&self.flow, &*sent.policy)
    }
}
