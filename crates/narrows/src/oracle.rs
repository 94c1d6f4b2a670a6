//! The best schedule in hindsight, and a bound that no schedule can beat.
//!
//! Both know everything: the cost of each method on each block, the link, the CPUs and the
//! receiver, including the future. [`bound`] is the linear program of `docs/design.md`,
//! ("The problem"), solved by its dual: one price for each resource. [`beam`] finds a schedule that keeps
//! order on the link and can be replayed. They judge policies; no policy uses them.

/// Cost of one method on one block, including fixed costs and header, in seconds of one core at
/// speed 1 and in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Seconds to encode the block.
    pub encode_s: f64,
    /// Bytes of its frame.
    pub wire_len: f64,
    /// Seconds to decode the block.
    pub decode_s: f64,
    /// Whether it refers to the blocks before it, so that it is decoded after them.
    pub linked: bool,
}

/// Cores, link and receiver over time.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Cores that encode, each at the speed `cpu`.
    pub cores: usize,
    /// Cores that decode, each at the speed `receiver`.
    pub decoders: usize,
    /// Rate of the link in wire bytes per second.
    pub link: Speed,
    /// Speed of the encoding cores; 1 is the core on which the costs were measured.
    pub cpu: Speed,
    /// Speed of the decoding cores, in the same unit.
    pub receiver: Speed,
}

impl Machine {
    /// A machine that does not change over time; both ends are as fast as the machine of the
    /// measurements.
    pub fn steady(rate_bytes_per_s: f64, cores: usize, decoders: usize) -> Self {
        let one = Speed::constant(1.0);
        Self { cores, decoders, link: Speed::constant(rate_bytes_per_s), cpu: one.clone(), receiver: one }
    }
}

/// A speed that changes in steps.
#[derive(Debug, Clone)]
pub struct Speed {
    /// (second, speed from then on, work done before).
    steps: Vec<(f64, f64, f64)>,
}

/// Lowest speed; lower ones are raised to it, so that no time is infinite.
const SPEED_MIN: f64 = 1e-9;

impl Speed {
    /// A speed that never changes.
    pub fn constant(speed: f64) -> Self {
        Self::steps(&[(0.0, speed)])
    }

    /// `steps` are (second, speed from then on), in order; the first holds from the beginning.
    pub fn steps(steps: &[(f64, f64)]) -> Self {
        let mut out: Vec<(f64, f64, f64)> = Vec::with_capacity(steps.len().max(1));
        for &(at_s, speed) in steps {
            let (at_s, done) = match out.last() {
                None => (0.0, 0.0),
                Some(&(before_s, speed, done)) => (at_s.max(before_s), done + speed * (at_s - before_s).max(0.0)),
            };
            out.push((at_s, speed.max(SPEED_MIN), done));
        }
        if out.is_empty() {
            out.push((0.0, 1.0, 0.0));
        }
        Self { steps: out }
    }

    /// The speed at this second.
    pub fn at(&self, second: f64) -> f64 {
        self.step_at(second).1
    }

    /// Work done from the beginning to this second.
    pub fn work_until(&self, second: f64) -> f64 {
        let (at_s, speed, done) = self.step_at(second);
        done + speed * (second - at_s)
    }

    /// The second at which `work` begun at `from_s` is done.
    pub fn finish(&self, from_s: f64, work: f64) -> f64 {
        if let [(_, speed, _)] = self.steps[..] {
            return from_s + work / speed;
        }
        let target = self.work_until(from_s) + work;
        let i = self.steps.partition_point(|s| s.2 <= target).saturating_sub(1);
        let (at_s, speed, done) = self.steps[i];
        (at_s + (target - done) / speed).max(from_s)
    }

    fn step_at(&self, second: f64) -> (f64, f64, f64) {
        self.steps[self.steps.partition_point(|s| s.0 <= second).saturating_sub(1)]
    }

    /// Whether it never changes.
    pub fn is_constant(&self) -> bool {
        self.steps.len() == 1
    }

    /// A speed to scale prices with; any positive value would do.
    fn typical(&self) -> f64 {
        self.steps.iter().map(|s| s.1).sum::<f64>() / self.steps.len() as f64
    }
}

/// Seconds that no schedule of these blocks can beat. Methods may be mixed within a block; order
/// and whole blocks are ignored. `blocks` are (number of repetitions, costs of every method).
///
/// For any prices the work has at least the value of its cheapest methods, and the machine earns at
/// most its capacity: the time at which capacity reaches value is a bound. Every price is valid;
/// the search finds the best.
pub fn bound(blocks: &[(usize, &[Cost])], machine: &Machine) -> f64 {
    let dual = Dual { blocks, machine, rate: machine.link.typical() };
    let receiver_share = |share: f64| best_between(-12.0, 12.0, 24, |x| dual.time(sigmoid(x), share));
    best_between(0.0, 1.0, 10, receiver_share)
}

struct Dual<'a> {
    blocks: &'a [(usize, &'a [Cost])],
    machine: &'a Machine,
    rate: f64,
}

impl Dual<'_> {
    /// `link`: the link's share of the price of CPU and link together. `receiver`: the receiver's
    /// share of the total price.
    fn time(&self, link: f64, receiver: f64) -> f64 {
        let m = self.machine;
        let (cores, decoders) = (m.cores.max(1) as f64, m.decoders.max(1) as f64);
        let price = [(1.0 - link) * (1.0 - receiver) / cores, link * (1.0 - receiver) / self.rate, receiver / decoders];
        let value_of = |c: &Cost| price[0] * c.encode_s + price[1] * c.wire_len + price[2] * c.decode_s;
        let cheapest = |costs: &[Cost]| costs.iter().map(value_of).fold(f64::INFINITY, f64::min);
        let value: f64 = self.blocks.iter().map(|(count, costs)| *count as f64 * cheapest(costs)).sum();
        let earned = |second: f64| {
            price[0] * cores * m.cpu.work_until(second)
                + price[1] * m.link.work_until(second)
                + price[2] * decoders * m.receiver.work_until(second)
        };
        if m.cpu.is_constant() && m.link.is_constant() && m.receiver.is_constant() {
            return value / earned(1.0);
        }
        let mut high = 1.0;
        while earned(high) < value && high < 1e12 {
            high *= 2.0;
        }
        let mut low = 0.0;
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if earned(middle) < value {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The largest value of a function with one peak: a grid, then golden section around its best
/// point.
fn best_between(low: f64, high: f64, grid: usize, mut f: impl FnMut(f64) -> f64) -> f64 {
    let step = (high - low) / grid as f64;
    let (mut best_x, mut best) = (low, f64::NEG_INFINITY);
    for i in 0..=grid {
        let x = low + step * i as f64;
        let value = f(x);
        if value > best {
            (best_x, best) = (x, value);
        }
    }
    const GOLDEN: f64 = 0.618_033_988_75;
    let (mut a, mut b) = ((best_x - step).max(low), (best_x + step).min(high));
    for _ in 0..16 {
        let (x, y) = (b - GOLDEN * (b - a), a + GOLDEN * (b - a));
        let (fx, fy) = (f(x), f(y));
        best = best.max(fx).max(fy);
        if fx > fy {
            b = y;
        } else {
            a = x;
        }
    }
    best
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A schedule: one method per block, as an index into the block's costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// When the last raw byte is delivered.
    pub seconds: f64,
    /// The index of the method of each block.
    pub choices: Vec<u8>,
}

/// Plays a schedule: blocks begin in order on the core that is free first, leave in order, are
/// decoded by the decoder that is free first and delivered in order.
pub fn play(blocks: &[&[Cost]], choices: &[u8], machine: &Machine) -> f64 {
    let mut state = State::new(machine);
    for (costs, choice) in blocks.iter().zip(choices) {
        state.add(&costs[usize::from(*choice)], machine);
    }
    state.delivered_s
}

/// The best schedule found by a beam search with `width` partial schedules. Each is judged by the
/// least time that the remaining blocks need: the dual of the bound, at a fixed set of prices. Endless and
/// without choices if a block has no costs.
pub fn beam(blocks: &[&[Cost]], machine: &Machine, width: usize) -> Schedule {
    let guide = Guide::new(blocks, machine);
    let worth: Vec<Vec<usize>> = blocks.iter().map(|costs| undominated(costs)).collect();
    let mut states = vec![State::new(machine)];
    // Parent and choice of each state of each step.
    let mut history: Vec<Vec<(u32, u8)>> = Vec::with_capacity(blocks.len());
    for (i, costs) in blocks.iter().enumerate() {
        let mut next: Vec<(f64, u32, u8, State)> = Vec::with_capacity(states.len() * costs.len());
        for (parent, state) in states.iter().enumerate() {
            for &m in &worth[i] {
                let cost = &costs[m];
                let mut state = state.clone();
                state.add(cost, machine);
                next.push((guide.total(i + 1, &state, machine), parent as u32, m as u8, state));
            }
        }
        next.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.3.left_s.total_cmp(&b.3.left_s)));
        let mut kept: Vec<State> = Vec::with_capacity(width.min(next.len()));
        let mut steps = Vec::with_capacity(width.min(next.len()));
        for (_, parent, m, state) in next {
            if kept.len() >= width.max(1) {
                break;
            }
            // Near-duplicates would crowd out really different states.
            if !kept.iter().rev().take(SIMILAR_WINDOW).any(|k| k.is_like(&state)) {
                kept.push(state);
                steps.push((parent, m));
            }
        }
        states = kept;
        history.push(steps);
    }
    let ends = states.iter().enumerate().map(|(i, s)| (i, s.delivered_s));
    let Some((mut at, seconds)) = ends.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Schedule { seconds: f64::INFINITY, choices: Vec::new() };
    };
    let mut choices = Vec::with_capacity(blocks.len());
    for steps in history.iter().rev() {
        let (parent, m) = steps[at];
        choices.push(m);
        at = parent as usize;
    }
    choices.reverse();
    Schedule { seconds, choices }
}

/// The methods that no other equals or beats in all respects.
fn undominated(costs: &[Cost]) -> Vec<usize> {
    let no_worse = |a: &Cost, b: &Cost| {
        a.encode_s <= b.encode_s && a.wire_len <= b.wire_len && a.decode_s <= b.decode_s && a.linked <= b.linked
    };
    let beaten = |i: usize| {
        let beats = |j: usize| no_worse(&costs[j], &costs[i]) && (j < i || !no_worse(&costs[i], &costs[j]));
        (0..costs.len()).any(|j| j != i && beats(j))
    };
    (0..costs.len()).filter(|i| !beaten(*i)).collect()
}

const SIMILAR_WINDOW: usize = 24;
/// Most changes of a speed that one search for an end crosses.
const ROUNDS_MAX: usize = 32;
/// Times that differ by less than this share count as equal.
const SIMILAR: f64 = 1e-4;

/// A partial schedule.
#[derive(Debug, Clone)]
struct State {
    free_s: Vec<f64>,
    decoder_free_s: Vec<f64>,
    left_s: f64,
    delivered_s: f64,
}

impl State {
    fn new(machine: &Machine) -> Self {
        Self {
            free_s: vec![0.0; machine.cores.max(1)],
            decoder_free_s: vec![0.0; machine.decoders.max(1)],
            left_s: 0.0,
            delivered_s: 0.0,
        }
    }

    fn add(&mut self, cost: &Cost, machine: &Machine) {
        let free = first_free(&mut self.free_s);
        *free = machine.cpu.finish(*free, cost.encode_s);
        self.left_s = machine.link.finish(free.max(self.left_s), cost.wire_len);
        let decoder = first_free(&mut self.decoder_free_s);
        let before_s = if cost.linked { self.delivered_s } else { 0.0 };
        *decoder = machine.receiver.finish(decoder.max(self.left_s).max(before_s), cost.decode_s);
        self.delivered_s = self.delivered_s.max(*decoder);
    }

    fn busy_s(&self) -> f64 {
        self.free_s.iter().sum::<f64>() / self.free_s.len() as f64
    }

    fn is_like(&self, other: &Self) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() < SIMILAR * self.left_s.max(1e-12);
        near(self.left_s, other.left_s) && near(self.busy_s(), other.busy_s())
    }
}

fn first_free(free_s: &mut [f64]) -> &mut f64 {
    let mut first = 0;
    for i in 1..free_s.len() {
        if free_s[i] < free_s[first] {
            first = i;
        }
    }
    &mut free_s[first]
}

/// Value of the remaining blocks, from each block on, at a set of prices between CPU and link.
struct Guide {
    prices: Vec<f64>,
    rest: Vec<Vec<f64>>,
}

impl Guide {
    fn new(blocks: &[&[Cost]], machine: &Machine) -> Self {
        let prices: Vec<f64> = (-8..=8).map(|i| sigmoid(f64::from(i) / 1.6)).collect();
        let (cores, rate) = (machine.cores.max(1) as f64, machine.link.typical());
        let mut rest = vec![vec![0.0; prices.len()]; blocks.len() + 1];
        for i in (0..blocks.len()).rev() {
            for (j, l) in prices.iter().enumerate() {
                let value = |c: &Cost| (1.0 - l) * c.encode_s / cores + l * c.wire_len / rate;
                rest[i][j] = rest[i + 1][j] + blocks[i].iter().map(value).fold(f64::INFINITY, f64::min);
            }
        }
        Self { prices, rest }
    }

    fn total(&self, next: usize, state: &State, machine: &Machine) -> f64 {
        let (busy_s, left_s) = (state.busy_s(), state.left_s);
        let prices = self.prices.iter().zip(&self.rest[next]);
        if machine.link.is_constant() && machine.cpu.is_constant() {
            return prices.map(|(l, rest)| (1.0 - l) * busy_s + l * left_s + rest).fold(state.delivered_s, f64::max);
        }
        let rate = machine.link.typical();
        let (cpu_done, link_done) = (machine.cpu.work_until(busy_s), machine.link.work_until(left_s));
        // At each price the end is where what cores and link earn from here on is worth the rest. Only
        // prices that would end later than the others before need be solved.
        prices.fold(state.delivered_s, |end_s, (l, rest)| {
            let left = |at_s: f64| {
                let cpu = machine.cpu.work_until(at_s) - cpu_done;
                rest - (1.0 - l) * cpu - l / rate * (machine.link.work_until(at_s) - link_done)
            };
            let mut end_s = end_s;
            for _ in 0..ROUNDS_MAX {
                let left = left(end_s);
                if left <= SIMILAR * rest {
                    break;
                }
                // Newton: what is earned is linear between the changes of a speed.
                end_s += left / ((1.0 - l) * machine.cpu.at(end_s) + l / rate * machine.link.at(end_s));
            }
            end_s
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(encode_s: f64, wire_len: f64, decode_s: f64) -> Cost {
        Cost { encode_s, wire_len, decode_s, linked: false }
    }

    /// Pseudo-random numbers from 0 to 1.
    fn draw(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / (1u64 << 31) as f64
    }

    fn random_blocks(count: usize, seed: u64) -> Vec<Vec<Cost>> {
        let mut state = seed;
        let mut block = || {
            let (hard, dense) = (0.5 + draw(&mut state), 0.5 + draw(&mut state));
            vec![cost(0.01, 100.0, 0.01), cost(0.2 * hard, 60.0 * dense, 0.05), cost(1.5 * hard, 30.0 * dense, 0.1)]
        };
        (0..count).map(|_| block()).collect()
    }

    #[test]
    fn the_bound_of_two_methods_is_their_mix() {
        // Raw needs 10 s of link, the other 10 s of CPU and no link: half and half takes 5 s.
        let costs = [cost(0.0, 10.0, 0.0), cost(10.0, 0.0, 0.0)];
        let machine = Machine::steady(1.0, 1, 1);
        assert!((bound(&[(1, &costs)], &machine) - 5.0).abs() < 1e-3);
        assert!((bound(&[(4, &costs)], &machine) - 20.0).abs() < 1e-2);
        // Four cores: x of the CPU's kind takes 10x/4, the rest 10(1-x): x = 0.8.
        let machine = Machine::steady(1.0, 4, 1);
        assert!((bound(&[(1, &costs)], &machine) - 2.0).abs() < 1e-3);
    }

    #[test]
    fn a_slow_receiver_bounds_too() {
        let costs = [cost(0.0, 1.0, 8.0), cost(1.0, 1.0, 2.0)];
        assert!((bound(&[(1, &costs)], &Machine::steady(1.0, 1, 1)) - 2.0).abs() < 1e-3);
        // With four decoders the link is the bottleneck.
        assert!((bound(&[(1, &costs)], &Machine::steady(1.0, 1, 4)) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn changing_speeds_are_integrated() {
        // 10 bytes/s for one second, then 1 byte/s.
        let link = Speed::steps(&[(0.0, 10.0), (1.0, 1.0)]);
        assert_eq!((link.at(0.5), link.at(1.0), link.work_until(3.0)), (10.0, 1.0, 12.0));
        assert!((link.finish(0.5, 6.0) - 2.0).abs() < 1e-12);
        assert!((link.finish(2.0, 3.0) - 5.0).abs() < 1e-12);
        let machine = Machine { link, ..Machine::steady(1.0, 1, 1) };
        let raw = [cost(0.0, 20.0, 0.0)];
        assert!((bound(&[(1, &raw)], &machine) - 11.0).abs() < 1e-3);
        assert!((play(&[&raw], &[0], &machine) - 11.0).abs() < 1e-12);
    }

    #[test]
    fn a_wide_beam_finds_what_brute_force_finds_and_the_bound_lies_below() {
        for (seed, cores, rate) in [(1, 1, 100.0), (2, 2, 100.0), (3, 1, 400.0), (4, 3, 50.0), (5, 2, 1000.0)] {
            let blocks = random_blocks(6, seed);
            let blocks: Vec<&[Cost]> = blocks.iter().map(Vec::as_slice).collect();
            let machine = Machine::steady(rate, cores, 2);
            let brute = (0..3usize.pow(6))
                .map(|mut n| {
                    let digit = || {
                        let d = (n % 3) as u8;
                        n /= 3;
                        d
                    };
                    let choices: Vec<u8> = std::iter::repeat_with(digit).take(6).collect();
                    play(&blocks, &choices, &machine)
                })
                .fold(f64::INFINITY, f64::min);
            let found = beam(&blocks, &machine, 729);
            assert!(found.seconds < brute * 1.003, "seed {seed}: {} against {brute}", found.seconds);
            assert_eq!(play(&blocks, &found.choices, &machine), found.seconds, "a schedule replays");
            assert!(beam(&blocks, &machine, 8).seconds < brute * 1.05);
            let weighted: Vec<_> = blocks.iter().map(|b| (1, *b)).collect();
            assert!(bound(&weighted, &machine) <= brute * (1.0 + 1e-9));
        }
    }

    /// Until the rate falls, cores compress little and the link carries much: no schedule can use the
    /// time of later cores for that.
    #[test]
    fn a_beam_finds_what_brute_force_finds_where_speeds_change() {
        let changes = [[(0.0, 1000.0), (0.3, 100.0)], [(0.0, 50.0), (2.0, 500.0)], [(0.0, 300.0), (0.5, 30.0)]];
        for (seed, steps) in (1..).zip(changes) {
            let blocks = random_blocks(6, seed);
            let blocks: Vec<&[Cost]> = blocks.iter().map(Vec::as_slice).collect();
            let machine = Machine { link: Speed::steps(&steps), ..Machine::steady(100.0, 1 + seed as usize % 2, 2) };
            let choices = |n: usize| -> Vec<u8> { (0..6).map(|i| (n / 3usize.pow(i) % 3) as u8).collect() };
            let all = (0..3usize.pow(6)).map(|n| play(&blocks, &choices(n), &machine));
            let brute = all.fold(f64::INFINITY, f64::min);
            let narrow = beam(&blocks, &machine, 8);
            assert!(narrow.seconds < brute * 1.05, "seed {seed}: {} against {brute}", narrow.seconds);
            assert!(beam(&blocks, &machine, 729).seconds < brute * 1.003, "seed {seed}");
        }
    }

    #[test]
    fn linked_blocks_are_decoded_one_after_the_other() {
        let machine = Machine::steady(1e9, 2, 2);
        for (linked, expected) in [(false, 2.0), (true, 4.0)] {
            let row = [Cost { linked, ..cost(0.0, 1.0, 1.0) }];
            let blocks = [&row[..]; 4];
            assert!((play(&blocks, &[0; 4], &machine) - expected).abs() < 1e-6, "{linked}");
        }
    }

    #[test]
    fn nothing_to_send_takes_no_time() {
        let machine = Machine::steady(1.0, 1, 1);
        assert_eq!(bound(&[], &machine), 0.0);
        assert_eq!(beam(&[], &machine, 4), Schedule { seconds: 0.0, choices: vec![] });
    }
}
