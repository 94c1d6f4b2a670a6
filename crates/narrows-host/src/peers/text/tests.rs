//! Round trips, age, bounds, and files that are cut off or made by somebody else.

use super::*;

const TODAY: u32 = 20_000;

fn kind(entropy: f32, age_days: u32) -> Kind {
    Kind {
        features: Features { entropy, text: 0.25, ..Features::default() },
        age_days,
        ratios: vec![
            KindRatio { method: Method::zstd(3), log_ratio: 1.5, blocks: 9 },
            KindRatio { method: Method::lz4_accel(16), log_ratio: 0.0, blocks: 255 },
        ],
    }
}

fn link(rate_bytes_per_s: f64) -> Option<PeerLink> {
    Some(PeerLink { rate_bytes_per_s, rtt_ns: Some(12_345_678) })
}

fn example() -> Peers {
    let mut peers = Peers::new([0xa5; 32]);
    peers.remember("tcp one", link(12_500_000.0), &[kind(0.5, 0), kind(0.75, 3)], TODAY);
    peers.remember("tcp two", None, &[kind(0.125, 0)], TODAY);
    peers.remember("tcp three", Some(PeerLink { rate_bytes_per_s: 125.0, rtt_ns: None }), &[], TODAY - 1);
    peers
}

/// The text with a check that fits, as somebody else could make it.
fn checked(body: &str) -> String {
    format!("{body}check {:016x}\n", check(body.as_bytes()))
}

#[test]
fn what_was_remembered_is_recalled_with_its_age() {
    let peers = Peers::parse(example().to_text().as_bytes()).unwrap();
    assert_eq!(peers, example());
    let one = peers.recall("tcp one", TODAY + 2).unwrap();
    assert_eq!(one.link, link(12_500_000.0));
    assert_eq!(one.kinds, [kind(0.5, 2), kind(0.75, 5)]);
    assert_eq!(peers.recall("tcp two", TODAY).unwrap().link, None);
    assert_eq!(peers.recall("tcp four", TODAY), None);
    assert_eq!(Peers::new([1; 32]).recall("tcp one", TODAY), None);
}

#[test]
fn hosts_are_not_named_and_salts_differ() {
    let text = example().to_text();
    assert!(!text.contains("one") && !text.contains("tcp"), "{text}");
    assert_ne!(Peers::new([1; 32]).hash("tcp one"), Peers::new([2; 32]).hash("tcp one"));
}

#[test]
fn a_flow_that_found_less_leaves_the_rest() {
    let mut peers = example();
    peers.remember("tcp one", None, &[kind(0.9, 0)], TODAY);
    let one = peers.recall("tcp one", TODAY).unwrap();
    assert_eq!((one.link, one.kinds), (link(12_500_000.0), vec![kind(0.9, 0)]));
    peers.remember("tcp one", link(1e6), &[], TODAY);
    let one = peers.recall("tcp one", TODAY).unwrap();
    assert_eq!((one.link, one.kinds), (link(1e6), vec![kind(0.9, 0)]));
}

#[test]
fn what_changes_no_choice_is_no_news() {
    let mut peers = example();
    let slower = |rtt_ns| Some(PeerLink { rate_bytes_per_s: 9e6, rtt_ns: Some(rtt_ns) });
    let same = [kind(0.51, 0), kind(0.75, 3)];
    assert!(!peers.remember("tcp one", link(12_500_000.0), &same, TODAY));
    assert!(!peers.remember("tcp one", slower(20_000_000), &same, TODAY), "a little slower");
    assert!(!peers.remember("tcp one", None, &[], TODAY), "nothing was found");
    assert!(peers.remember("tcp one", slower(50_000_000), &same, TODAY), "a longer way");
    assert!(peers.remember("tcp one", link(30_000_000.0), &same, TODAY), "a faster link");
    let mut denser = same.clone();
    denser[0].ratios[0].log_ratio = 1.7;
    assert!(peers.remember("tcp one", None, &denser, TODAY), "another ratio");
    denser[0].ratios[0].blocks = 18;
    assert!(peers.remember("tcp one", None, &denser, TODAY), "of twice as many blocks");
    assert!(peers.remember("tcp one", None, &denser[..1], TODAY), "fewer kinds");
    assert!(peers.remember("tcp one", None, &[], TODAY + 1), "another day");
    assert!(peers.remember("tcp four", None, &denser, TODAY), "another peer");
}

#[test]
fn peers_and_kinds_are_forgotten_after_a_month_and_those_of_a_wrong_clock_at_once() {
    let peers = example();
    assert!(peers.recall("tcp one", TODAY + DAYS_MAX).is_some());
    assert_eq!(peers.recall("tcp one", TODAY + DAYS_MAX).unwrap().kinds.len(), 1, "the older kind is gone");
    assert_eq!(peers.recall("tcp one", TODAY + DAYS_MAX + 1), None);
    assert_eq!(peers.recall("tcp one", TODAY - 2), None, "from the future");
    let mut peers = example();
    peers.remember("tcp four", link(1e6), &[], TODAY + DAYS_MAX + 1);
    assert_eq!(peers.rows.len(), 1, "what is too old leaves the file");
}

#[test]
fn the_file_is_bounded_and_the_latest_peers_stay() {
    let kinds: Vec<Kind> = (0..40).map(|i| kind(i as f32 / 40.0, 0)).collect();
    let mut peers = Peers::new([7; 32]);
    for i in 0..200 {
        peers.remember(&format!("tcp {i}"), link(1e6), &kinds, TODAY);
    }
    let text = peers.to_text();
    assert!(text.len() <= FILE_MAX, "{}", text.len());
    let peers = Peers::parse(text.as_bytes()).unwrap();
    assert!(peers.rows.len() <= PEERS_MAX && peers.rows.len() > 20, "{}", peers.rows.len());
    assert!(peers.rows.iter().all(|row| row.kinds.len() == KINDS_MAX));
    assert!(peers.recall("tcp 199", TODAY).is_some() && peers.recall("tcp 0", TODAY).is_none());
}

#[test]
fn every_truncation_and_every_changed_byte_is_invalid() {
    let text = example().to_text().into_bytes();
    for end in 0..text.len() {
        assert_eq!(Peers::parse(&text[..end]), None, "cut off at {end}");
    }
    for at in 0..text.len() {
        let mut bytes = text.clone();
        bytes[at] ^= 1;
        // Digits of the check may be written in either case.
        assert!(Peers::parse(&bytes).is_none_or(|peers| peers == example()), "changed at {at}");
    }
    assert_eq!(Peers::parse(&vec![b'a'; 2 * FILE_MAX]), None);
    assert_eq!(Peers::parse(&[0xff; 100]), None);
}

#[test]
fn values_that_make_no_sense_are_invalid_even_with_a_check_that_fits() {
    let head = format!("{MAGIC}\nsalt {}\n", "0".repeat(64));
    let with =
        |line: &str| Peers::parse(checked(&format!("{head}peer 00000000000000aa 20000 1e6 5\n{line}\n")).as_bytes());
    let good = "kind 20000 0.5 0 0 0 0 1 0 zstd:level=1 1.5 3";
    assert!(with(good).is_some());
    for bad in ["NaN", "inf", "-inf", "-1", "1e30", "99999999999999999999999999", "", "x"] {
        for kind in [
            format!("kind {bad} 0.5 0 0 0 0 1 0 lz4 1.5 3"),
            format!("kind 20000 {bad} 0 0 0 0 1 0 lz4 1.5 3"),
            format!("kind 20000 0.5 0 0 0 0 1 0 lz4 {bad} 3"),
            format!("kind 20000 0.5 0 0 0 0 1 0 lz4 1.5 {bad}"),
            format!("peer 00000000000000ab {bad} 1e6 5"),
            format!("peer 00000000000000ab 20000 {bad} 5"),
            format!("peer 00000000000000ab 20000 1e6 {bad}"),
        ] {
            assert_eq!(with(&kind), None, "{kind}");
        }
    }
    for bad in [
        "kind 20000 0.5 0 0 0 0 1 0",
        "kind 20000 0.5 0 0 0 0 1 0 nothing 1.5 3",
        "kind 20000 0.5 0 0 0 0 1 0 lz4 1.5 0",
        "kind 20000 0.5 0 0 0 0 1 0 lz4 1.5",
        "kind 20000 0.5 0 0 0 0 1 0 lz4 1 1 lz4 1 1 lz4 1 1 lz4 1 1 lz4 1 1",
        "peer aa 20000 1e6 5",
        "peer 00000000000000ab 20000 - 5",
        "peer 00000000000000ab 20000 1e6 5 6",
        "other 1",
        "",
    ] {
        assert_eq!(with(bad), None, "{bad}");
    }
    let many =
        |line: &str, n: usize| Peers::parse(checked(&(head.clone() + &format!("{line}\n").repeat(n))).as_bytes());
    assert!(many("peer 00000000000000aa 20000 1e6 5", PEERS_MAX).is_some());
    assert_eq!(many("peer 00000000000000aa 20000 1e6 5", PEERS_MAX + 1), None);
    assert_eq!(with(format!("{good}\n").repeat(KINDS_MAX + 1).trim_end()), None);
    assert_eq!(many(good, 1), None, "a kind of nobody");
    let salts = ["", "0", &"g".repeat(64), &"é".repeat(32)].map(|salt| checked(&format!("{MAGIC}\nsalt {salt}\n")));
    assert!(salts.iter().all(|text| Peers::parse(text.as_bytes()).is_none()));
    assert_eq!(Peers::parse(checked("narrows-peers 2\n").as_bytes()), None);
}
