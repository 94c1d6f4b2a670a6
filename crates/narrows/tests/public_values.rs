//! No value of a public type makes the engine panic: unknown methods, limits of 0, the largest numbers.

mod world;

use narrows::codec::{CODECS, CodecId, Codecs, DEFAULT_METHODS, Method};
use narrows::frame::HISTORY_DEFAULT;
use narrows::hint::{Hint, Mode};
use narrows::monitor::cost::{CostModel, Prior, histories};
use narrows::oracle::{self, Machine, Speed};
use narrows::policy::{Choice, PolicySetup, PolicySpec, Rescue, print_method};
use narrows::sender::SenderConfig;
use narrows_classic::{Planned, Replay, Schedule, Stall, policies};
use world::scene::Scene;
use world::{Conditions, World, text};

/// Methods of all codecs and of none, at any level.
fn methods() -> Vec<Method> {
    let known = CODECS.iter().map(|codec| codec.id());
    let ids: Vec<_> = known.chain([8, 9, 10, 40, 60, 63, 64, 255].map(CodecId)).collect();
    let levels = [i32::MIN, -8, -1, 0, 1, 3, 22, i32::MAX];
    ids.iter().flat_map(|id| levels.map(|level| Method::new(*id, level))).collect()
}

#[test]
fn any_method_is_printed_and_costs_something() {
    let few = Codecs::new(&CODECS[..1]).unwrap();
    for method in methods() {
        for codecs in [Codecs::shipped(), &few] {
            let _ = (codecs.print(method), codecs.print_linked(method, true), codecs.can_link(method));
            let _ = (codecs.encode_ns(method, usize::MAX), codecs.of(method), codecs.parse(&codecs.print(method)));
            assert!(codecs.decode_rate(method) > 0.0);
        }
        let choice = Choice { linked: true, ..Choice::new(method, usize::MAX) };
        assert!(!choice.to_string().is_empty() && !format!("{choice:?} {method:?} {method}").is_empty());
        let _ = (print_method(method, true), method.info().name(), histories(method, usize::MAX), histories(method, 0));
        let _ = (PolicySpec::fixed(method, true).to_string(), Method::print_list(&[method, method]));
    }
}

#[test]
fn any_method_is_chosen_for_a_view() {
    let mut scene = Scene::new(text(100_000, 1), 100.0);
    for method in methods() {
        let setup =
            PolicySetup { methods: &[method, method], cores: usize::MAX, ..PolicySetup::new(0, Prior::shipped()) };
        for spec in [PolicySpec::fixed(method, true), PolicySpec::balance()] {
            let mut policy = spec.build(&setup);
            let choice = policy.choose(&scene.view());
            assert!(scene.limits.allows(choice.method), "{spec} {method}");
            let _ = (policy.window(usize::MAX), policy.explain());
            if let Rescue::TakeOver(method) = policy.rescue(&scene.view()) {
                assert!(scene.limits.allows(method));
            }
        }
        let _ = CostModel::new(&[Method::STORE, method], Prior::shipped());
        let mut replay = Replay::new(
            Schedule::new(vec![
                Planned { linked: true, ..Planned::alone(0, method) },
                Planned::alone(usize::MAX, method),
            ]),
            Codecs::shipped(),
        );
        scene.raw_offset = u64::MAX - 1;
        assert!(narrows::policy::Policy::choose(&mut replay, &scene.view()).block_len > 0);
    }
}

#[test]
fn any_hint_is_a_policy() {
    let methods = methods();
    for methods in [None, Some(Vec::new()), Some(methods[..20].to_vec()), Some(methods)] {
        for rate in [None, Some(0), Some(1), Some(u64::MAX)] {
            let hint = Hint {
                encode_rate: rate,
                decode_rate: rate,
                images: Some(true),
                methods: methods.clone(),
                ..Hint::default()
            };
            for mode in Mode::ALL {
                let spec = PolicySpec::of_hint(&hint, mode);
                let _ = (spec.to_string(), spec.methods(), spec.block_max());
                let mut policy = spec.build(&PolicySetup::new(2, Prior::shipped()));
                let scene = Scene::new(text(10_000, 1), 100.0);
                assert!(scene.limits.allows(policy.choose(&scene.view()).method), "{spec}");
            }
        }
    }
}

#[test]
fn any_configuration_sends() {
    let data = text(20_000, 1);
    for (block_max, memory_max, cores, history) in
        [(0, 0, 0, 0), (1 << 40, usize::MAX, 3, usize::MAX), (1, 1, 1, HISTORY_DEFAULT)]
    {
        let config = SenderConfig { block_max, memory_max, cores, history, ..SenderConfig::default() };
        let policy = PolicySpec::fixed(DEFAULT_METHODS[4], true).build(&PolicySetup::new(cores, Prior::shipped()));
        let mut world = World::new(policy, config, Conditions::steady(100.0));
        // Whoever asks for more than the format has is refused by the receiver, at the preface.
        if history <= HISTORY_DEFAULT {
            world.send_all(&data[..300]);
            assert!(world.received == data[..300]);
        }
    }
}

#[test]
fn policies_of_older_systems_take_any_numbers() {
    let scene = Scene::new(text(10_000, 1), 100.0);
    let mut stall = Stall::new(9, -3, usize::MAX);
    assert_eq!(narrows::policy::Policy::choose(&mut stall, &scene.view()).method, Method::zstd(9));
    for name in ["adoc", "datacomp", "stall"] {
        let setup = PolicySetup::new(usize::MAX, Prior::shipped());
        let mut policy = policies().parse(name).unwrap().build(&setup);
        let mut scene = Scene::new(text(10_000, 1), 100.0);
        scene.limits.block_max = 0;
        let _ = policy.choose(&scene.view());
    }
}

#[test]
fn a_schedule_of_blocks_without_costs_has_no_end() {
    let machine = Machine {
        cores: 1,
        decoders: 1,
        link: Speed::constant(1.0),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(1.0),
    };
    let schedule = oracle::beam(&[&[]], &machine, usize::MAX);
    assert!(schedule.seconds.is_infinite() && schedule.choices.is_empty());
    assert!(oracle::beam(&[], &machine, 0).seconds.is_finite());
}
