//! Tests of one receiving direction, fed by hand.

use super::super::flow::NEVER;
use super::super::marker::{Key, MAGIC, Side};
use super::*;

fn marker() -> Marker {
    Key::new(&[1; 16], &[2; 16]).marker(Side::Client)
}

fn armed() -> Incoming {
    let mut incoming = Incoming::new(1000, false);
    incoming.arm(marker());
    incoming
}

/// Feeds the wire in pieces; returns the plain bytes and the bytes of frames.
fn run(incoming: &mut Incoming, wire: &[u8], cuts: impl Fn(usize) -> usize) -> (Vec<u8>, Vec<u8>) {
    let (mut plain, mut frames, mut at, mut i) = (Vec::new(), Vec::new(), 0, 0);
    while at < wire.len() {
        let piece = &wire[at..(at + cuts(i)).min(wire.len())];
        let step = incoming.feed(piece, 0).unwrap();
        plain.extend_from_slice(&step.released);
        plain.extend_from_slice(&piece[..step.plain]);
        frames.extend_from_slice(step.frames.map_or(&[], |n| &piece[n..]));
        assert!(plain.len() + frames.len() + incoming.held() + MARKER_LEN >= at);
        (at, i) = (at + piece.len(), i + 1);
    }
    (plain, frames)
}

#[test]
fn the_marker_is_found_wherever_it_is_cut() {
    let marker = marker();
    // The marker follows prefixes of every length, back to back and with other bytes between.
    let mut data = b"plain".to_vec();
    for n in 0..CERTAIN_LEN {
        data.extend_from_slice(&marker[..n]);
        if n % 3 == 0 {
            data.push(n as u8);
        }
    }
    data.extend_from_slice(&MAGIC);
    let wire = [&data[..], &marker, b"frames", &marker].concat();
    for cut in 1..wire.len() {
        let (plain, frames) = run(&mut armed(), &wire, |_| cut);
        assert_eq!((plain, frames), (data.clone(), wire[data.len() + MARKER_LEN..].to_vec()), "pieces of {cut}");
    }
}

#[test]
fn what_is_held_is_given_out_by_the_next_byte_the_answer_or_the_end() {
    let marker = marker();
    for n in 1..CERTAIN_LEN {
        let mut incoming = armed();
        let step = incoming.feed(&[b"ab", &marker[..n]].concat(), 5).unwrap();
        assert_eq!((step.plain, step.frames, incoming.held()), (2, None, n));
        assert_eq!((incoming.take_question(), incoming.take_question()), (Some(2), None));
        assert_eq!(incoming.deadline_ns(), Some(1005));
        let mut other = armed();
        other.feed(&[b"ab", &marker[..n]].concat(), 5).unwrap();
        assert_eq!(&*other.end().unwrap(), &marker[..n]);
        // A late answer about other bytes changes nothing.
        assert!(incoming.answered(1, false).unwrap().is_empty());
        if n % 2 == 0 {
            assert_eq!(&*incoming.answered(2, false).unwrap(), &marker[..n]);
        } else {
            let step = incoming.feed(b"\0", 6).unwrap();
            assert_eq!((&*step.released, step.plain), (&marker[..n], 1));
        }
        assert_eq!((incoming.deadline_ns(), incoming.take_question()), (None, None));
        assert_eq!(run(&mut incoming, &[&marker[..], b"x"].concat(), |_| 7), (vec![], b"x".to_vec()));
    }
}

#[test]
fn a_marker_that_is_certain_is_waited_for_and_neither_broken_off_nor_given_out() {
    let marker = marker();
    let mut incoming = armed();
    incoming.feed(&marker[..3], 0).unwrap();
    assert!(incoming.answered(0, true).unwrap().is_empty());
    assert_eq!(incoming.deadline_ns(), None);
    assert!(incoming.end().is_err());
    assert!(incoming.feed(b"x", 0).is_err());
    let mut incoming = armed();
    incoming.feed(&marker[..CERTAIN_LEN], 0).unwrap();
    assert_eq!((incoming.deadline_ns(), incoming.take_question()), (None, None));
    assert!(incoming.end().is_err());
    assert!(incoming.answered(1, false).unwrap().is_empty());
    assert!(incoming.answered(0, false).is_err(), "a marker is no data");
    let mut incoming = armed();
    incoming.feed(b"data", 0).unwrap();
    assert!(incoming.answered(2, true).is_err(), "a marker among bytes that are given out");
}

#[test]
fn nothing_is_held_where_the_peer_says_that_its_marker_is_not() {
    let marker = marker();
    for at in [9, NEVER] {
        let mut incoming = armed();
        incoming.feed(&marker[..3], 0).unwrap();
        assert_eq!(&*incoming.answered(at, true).unwrap(), &marker[..3]);
        let step = incoming.feed(&marker[..2], 0).unwrap();
        assert_eq!((step.plain, incoming.held(), incoming.take_question()), (2, 0, None));
        incoming.feed(b"abcd", 0).unwrap();
        let step = incoming.feed(&marker[..1], 0).unwrap();
        assert_eq!((step.plain, incoming.deadline_ns()), (usize::from(at == NEVER), None));
        assert!(incoming.answered(at.wrapping_sub(1), true).is_err(), "two places");
        if at == NEVER {
            assert!(incoming.feed(&marker, 0).is_err());
        } else {
            assert!(incoming.end().is_err());
        }
    }
}

#[test]
fn what_nobody_can_resolve_ends_the_connection_and_is_not_given_out() {
    let mut incoming = armed();
    incoming.feed(&marker()[..3], 10).unwrap();
    assert!(incoming.on_time(1009).unwrap().is_empty());
    assert!(incoming.on_time(1010).is_err());
}

fn wary() -> Incoming {
    let mut incoming = Incoming::new(1000, true);
    incoming.arm(marker());
    incoming
}

/// A user who read addresses and clock can claim another user's connection, and then say
/// anything about its bytes, or nothing.
#[test]
fn words_before_the_marker_end_an_upgrade_and_no_connection() {
    let marker = marker();
    type Lie = fn(&mut Incoming) -> Result<Released>;
    let lies: [Lie; 6] = [
        |i| i.answered(0, true),
        |i| i.answered(2, true).and_then(|_| i.answered(3, true)),
        |i| i.answered(2, true).and_then(|_| i.answered(2, false)),
        |i| i.on_time(1000),
        |i| i.answered(2, true).and_then(|_| i.on_time(1000)),
        |i| i.doubt(Error::corrupt("a question about nothing")),
    ];
    for lie in lies {
        let mut incoming = wary();
        let mut given = b"ab".to_vec();
        assert_eq!(incoming.feed(&[b"ab", &marker[..3]].concat(), 0).unwrap().plain, 2);
        given.extend_from_slice(&lie(&mut incoming).unwrap());
        assert!(incoming.is_doubtful() && incoming.is_plain() && !incoming.can_arm());
        assert_eq!((incoming.deadline_ns(), incoming.take_question(), incoming.held()), (None, None, 0));
        // Nothing is held any more, whatever the peer says.
        for bytes in [&marker[..2], b"more", &marker[..MAGIC.len() - 1]] {
            let step = incoming.feed(bytes, 0).unwrap();
            assert!(step.released.is_empty() && step.plain == bytes.len());
            given.extend_from_slice(bytes);
            assert!(incoming.answered(7, true).unwrap().is_empty());
        }
        assert_eq!(given, [b"ab", &marker[..3], &marker[..2], b"more", &marker[..MAGIC.len() - 1]].concat());
        // But if the marker arrives after all, frames follow, which no program may see.
        assert!(incoming.feed(&marker[MAGIC.len() - 1..], 0).is_err());
    }
    // The marker may have begun with bytes that were given out.
    for cut in 1..MAGIC.len() {
        let mut incoming = wary();
        incoming.feed(&marker[..cut], 0).unwrap();
        assert_eq!(&*incoming.on_time(1000).unwrap(), &marker[..cut]);
        assert!(incoming.feed(&marker[cut..], 0).is_err());
    }
}

#[test]
fn bytes_of_which_somebody_says_that_they_are_a_marker_are_data_if_they_go_on_otherwise() {
    let marker = marker();
    for early in [true, false] {
        let mut incoming = wary();
        if early {
            incoming.answered(0, true).unwrap();
        }
        incoming.feed(&marker[..5], 0).unwrap();
        if !early {
            incoming.answered(0, true).unwrap();
        }
        assert_eq!((incoming.take_question(), incoming.deadline_ns()), (None, Some(1000)));
        let step = incoming.feed(&[b"data", &marker[..1]].concat(), 5).unwrap();
        assert_eq!((&*step.released, step.plain), (&marker[..5], 5));
        // The end of the program's bytes, or a withdrawal, has the same effect.
        for withdrawn in [true, false] {
            let mut incoming = wary();
            incoming.answered(0, true).unwrap();
            incoming.feed(&marker[..5], 0).unwrap();
            let released = if withdrawn { incoming.disarm() } else { incoming.end() };
            assert_eq!(&*released.unwrap(), &marker[..5]);
        }
        // A marker of another key has the same magic bytes: its sender has the connection.
        let mut incoming = wary();
        incoming.answered(0, true).unwrap();
        incoming.feed(&marker[..1], 0).unwrap();
        let other = Key::new(&[1; 16], &[3; 16]).marker(Side::Client);
        assert!(incoming.feed(&other[1..], 0).is_err());
        // With the rest of the bytes it is a marker.
        let mut incoming = wary();
        incoming.answered(0, true).unwrap();
        incoming.feed(&marker[..5], 0).unwrap();
        assert_eq!(incoming.feed(&marker[5..], 900).unwrap().frames, Some(MARKER_LEN - 5));
    }
}

#[test]
fn an_opening_is_found_at_the_first_byte_only_and_plain_clients_are_let_through() {
    let opening = [&DIRECT_MAGIC[..], &[7; 16]].concat();
    for cut in 1..30 {
        let mut incoming = Incoming::new(9, false);
        incoming.expect_opening(1000);
        let (plain, frames) = run(&mut incoming, &[&opening[..], b"frames"].concat(), |_| cut);
        assert_eq!((plain.len(), &frames[..], incoming.nonce()), (0, &b"frames"[..], [7; 16]), "{cut}");
        let mut incoming = Incoming::new(9, false);
        incoming.expect_opening(1000);
        let wire = [b"x", &opening[..]].concat();
        assert_eq!(run(&mut incoming, &wire, |_| cut), (wire, vec![]));
        let mut incoming = Incoming::new(9, false);
        incoming.expect_opening(1000);
        let wire = [&opening[..5], b"SSH-2.0"].concat();
        assert_eq!(run(&mut incoming, &wire, |_| cut), (wire, vec![]));
    }
    // An incomplete opening counts as a plain client's after a while; if it continues then, no
    // program may see what follows.
    let mut incoming = Incoming::new(1000, false);
    incoming.expect_opening(1000);
    incoming.feed(&opening[..5], 0).unwrap();
    assert_eq!(&*incoming.on_time(1000).unwrap(), &opening[..5]);
    assert_eq!(incoming.feed(&opening[5..7], 0).unwrap().plain, 2);
    assert!(incoming.feed(&opening[7..], 0).is_err());
}
