//! Handles: numbers instead of addresses, so that a closed or invalid one is detected and never
//! dereferenced.
//!
//! ```text
//!   63     56 55    52 51            20 19         0
//!   [ 0x4e  ][ kind  ][  generation    ][  place   ]
//! ```
//!
//! The top byte makes the handle an address that no program has, should anybody dereference it.
//! Places are reused with the next generation; the place free for longest comes first.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::status::{Failure, Result, Status};

const MARK: u64 = 0x4e << 56;
const KIND_SHIFT: u32 = 52;
const GENERATION_SHIFT: u32 = 20;
/// 2^20: a process has about a million descriptors at most, and no more message ends than
/// connections.
const PLACES_MAX: usize = 1 << GENERATION_SHIFT;
/// Places allocated at a time. They are never freed.
const CHUNK: usize = 1024;
const CHUNKS: usize = PLACES_MAX / CHUNK;

/// An object behind a handle.
pub(crate) trait Held: Sized + Send + 'static {
    /// 1 to 15, one for each type.
    const KIND: u8;
    /// For error messages: "writer".
    const NAME: &'static str;
    fn table() -> &'static Table<Self>;
    /// An error if this process may not use the object.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Whether a call that [`Table::share`] lets run beside others still uses the object.
    fn is_shared(&self) -> bool {
        false
    }
    /// Ends the object's waits from another thread.
    fn stopper(&self) -> Option<Arc<dyn Stop>> {
        None
    }
}

pub(crate) trait Stop: Send + Sync {
    fn stop(&self) -> Result<()>;
}

/// All objects of a type.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    made: usize,
    free: VecDeque<usize>,
}

struct Slot<T> {
    /// Generation of the valid handle, 0 before the first. Checked before the lock is tried.
    generation: AtomicU32,
    object: Mutex<Place<T>>,
    stopper: Mutex<(u32, Option<Arc<dyn Stop>>)>,
}

struct Place<T> {
    object: Option<Box<T>>,
    /// A call with the object panicked.
    broken: bool,
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self {
            generation: AtomicU32::new(0),
            object: Mutex::new(Place { object: None, broken: false }),
            stopper: Mutex::new((0, None)),
        }
    }
}

impl<T: Held> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            places: Mutex::new(Places { made: 0, free: VecDeque::new() }),
        }
    }

    /// Reserves a place, then makes the object; returns its handle.
    pub(crate) fn open(&self, make: impl FnOnce() -> Result<T>) -> Result<u64> {
        let place = self.reserve()?;
        let object = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err(Failure::internal()));
        let object = object.inspect_err(|_| lock(&self.places).free.push_front(place))?;
        let chunk = self.chunks[place / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::new()).collect());
        let slot = &chunk[place % CHUNK];
        let generation = slot.generation.load(Ordering::Acquire).max(1);
        *lock(&slot.stopper) = (generation, object.stopper());
        *lock(&slot.object) = Place { object: Some(Box::new(object)), broken: false };
        slot.generation.store(generation, Ordering::Release);
        Ok(MARK | u64::from(T::KIND) << KIND_SHIFT | u64::from(generation) << GENERATION_SHIFT | place as u64)
    }

    fn reserve(&self) -> Result<usize> {
        let mut places = lock(&self.places);
        match places.free.pop_front() {
            Some(place) => Ok(place),
            None if places.made < PLACES_MAX => {
                places.made += 1;
                Ok(places.made - 1)
            }
            None => {
                let text = format!("there are {PLACES_MAX} {}s open: close some", T::NAME);
                Err(Failure::new(Status::NARROWS_ERROR_LIMIT, text))
            }
        }
    }

    /// Runs `call` with the object of a handle.
    pub(crate) fn with<R>(&self, handle: u64, call: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let (slot, generation, _) = self.find(handle)?;
        let mut held = Self::enter(slot, generation)?;
        if held.broken {
            return Err(Failure::internal());
        }
        let Some(object) = held.object.as_mut() else { return Err(closed::<T>()) };
        object.check()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(object)));
        result.unwrap_or_else(|_| {
            held.broken = true;
            Err(Failure::internal())
        })
    }

    /// Runs `call` with an object that any number of threads may use at once: with a copy of it, made
    /// under the lock, which is free again during the call.
    pub(crate) fn share<R>(&self, handle: u64, call: impl FnOnce(&T) -> Result<R>) -> Result<R>
    where
        T: Clone,
    {
        let (slot, generation, _) = self.find(handle)?;
        let copy = {
            // Waits, since others hold it only to copy or to close.
            let held = lock(&slot.object);
            if slot.generation.load(Ordering::Acquire) != generation {
                return Err(closed::<T>());
            }
            if held.broken {
                return Err(Failure::internal());
            }
            let Some(object) = held.object.as_deref() else { return Err(closed::<T>()) };
            object.check()?;
            object.clone()
        };
        let result = catch_unwind(AssertUnwindSafe(|| call(&copy)));
        result.unwrap_or_else(|_| {
            // The handle is still valid: nothing that is shared is closed.
            lock(&slot.object).broken = true;
            Err(Failure::internal())
        })
    }

    /// Runs `finish` with the object, then invalidates the handle. Until then the object is busy
    /// for other threads, which may stop it.
    pub(crate) fn close(&self, handle: u64, finish: impl FnOnce(T) -> Result<()>) -> Result<()> {
        let (slot, generation, place) = self.find(handle)?;
        let mut held = Self::enter(slot, generation)?;
        held.object.as_ref().map_or_else(|| Err(closed::<T>()), |object| object.check())?;
        if held.object.as_ref().is_some_and(|object| object.is_shared()) {
            return Err(busy::<T>());
        }
        let Some(object) = held.object.take() else { return Err(closed::<T>()) };
        let broken = held.broken;
        let result = catch_unwind(AssertUnwindSafe(|| {
            if broken {
                drop(object);
                return Err(Failure::internal());
            }
            finish(*object)
        }));
        slot.generation.store(generation.wrapping_add(1).max(1), Ordering::Release);
        drop(held);
        *lock(&slot.stopper) = (0, None);
        lock(&self.places).free.push_back(place);
        result.unwrap_or_else(|_| Err(Failure::internal()))
    }

    /// Ends the waits of the object, even while another thread is in a call with it.
    pub(crate) fn stop(&self, handle: u64) -> Result<()> {
        let (slot, generation, _) = self.find(handle)?;
        let stopper = lock(&slot.stopper);
        match &*stopper {
            (g, Some(stopper)) if *g == generation => stopper.stop(),
            _ => Err(closed::<T>()),
        }
    }

    fn find(&self, handle: u64) -> Result<(&Slot<T>, u32, usize)> {
        let foreign = || Failure::misuse(format!("invalid {} handle: {handle:#x} was never returned as one", T::NAME));
        if handle == 0 {
            return Err(Failure::misuse(format!("the {} is a null pointer", T::NAME)));
        }
        if handle & !((1 << KIND_SHIFT) - 1) != MARK | u64::from(T::KIND) << KIND_SHIFT {
            return Err(foreign());
        }
        let place = (handle & (PLACES_MAX as u64 - 1)) as usize;
        let generation = (handle >> GENERATION_SHIFT) as u32;
        let chunk = self.chunks[place / CHUNK].get().ok_or_else(foreign)?;
        let slot = &chunk[place % CHUNK];
        let now = slot.generation.load(Ordering::Acquire);
        match generation {
            0 => Err(foreign()),
            g if g < now => Err(closed::<T>()),
            g if g > now => Err(foreign()),
            _ => Ok((slot, generation, place)),
        }
    }

    fn enter(slot: &Slot<T>, generation: u32) -> Result<MutexGuard<'_, Place<T>>> {
        let held = match slot.object.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy::<T>()),
        };
        // It may have been closed between the check and the lock.
        if slot.generation.load(Ordering::Acquire) == generation { Ok(held) } else { Err(closed::<T>()) }
    }
}

fn closed<T: Held>() -> Failure {
    Failure::new(Status::NARROWS_ERROR_CLOSED, format!("this {} was closed before", T::NAME))
}

fn busy<T: Held>() -> Failure {
    Failure::new(Status::NARROWS_ERROR_BUSY, format!("another thread is in a call with this {}", T::NAME))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(u32);

    impl Held for Thing {
        const KIND: u8 = 15;
        const NAME: &'static str = "thing";
        fn table() -> &'static Table<Self> {
            static TABLE: Table<Thing> = Table::new();
            &TABLE
        }
        fn check(&self) -> Result<()> {
            if self.0 == 4 { Err(Failure::misuse("not here")) } else { Ok(()) }
        }
    }

    fn status<T>(result: Result<T>) -> Status {
        result.err().map_or(Status::NARROWS_OK, |f| f.status)
    }

    #[test]
    fn what_is_closed_foreign_or_busy_is_told_apart() {
        let table = Thing::table();
        let first = table.open(|| Ok(Thing(1))).unwrap();
        let second = table.open(|| Ok(Thing(2))).unwrap();
        assert_eq!(table.with(second, |t| Ok(t.0)).unwrap(), 2);
        for foreign in
            [0, 1, 0x7fff_1234_5678, u64::MAX, first + (1 << GENERATION_SHIFT), first ^ 1 << KIND_SHIFT, first + 999]
        {
            assert_eq!(status(table.with(foreign, |_| Ok(()))), Status::NARROWS_ERROR_MISUSE, "{foreign:#x}");
        }
        let busy = table.with(first, |_| Ok(status(table.with(first, |_| Ok(())))));
        assert_eq!(busy.unwrap(), Status::NARROWS_ERROR_BUSY);
        table.close(first, |t| if t.0 == 1 { Ok(()) } else { Err(Failure::internal()) }).unwrap();
        assert_eq!(status(table.with(first, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);
        assert_eq!(status(table.close(first, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);
        assert_eq!(status(table.stop(first)), Status::NARROWS_ERROR_CLOSED);
        // Its place is reused, its number is not.
        let third = table.open(|| Ok(Thing(3))).unwrap();
        assert_eq!(third, first + (1 << GENERATION_SHIFT));
        assert_eq!(status(table.with(first, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);
        assert_eq!(table.with(third, |t| Ok(t.0)).unwrap(), 3);

        assert_eq!(
            status(table.with(third, |_| -> Result<()> { panic!("of a test") })),
            Status::NARROWS_ERROR_INTERNAL
        );
        assert_eq!(status(table.with(third, |t| Ok(t.0))), Status::NARROWS_ERROR_INTERNAL, "it stays broken");
        let closed = table.close(third, |_| Err(Failure::misuse("broken ones are not finished")));
        assert_eq!(status(closed), Status::NARROWS_ERROR_INTERNAL, "its outcome is unknown");
        assert_eq!(status(table.with(third, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);
    }

    #[derive(Clone)]
    struct Common(Arc<u32>);

    impl Held for Common {
        const KIND: u8 = 14;
        const NAME: &'static str = "common thing";
        fn table() -> &'static Table<Self> {
            static TABLE: Table<Common> = Table::new();
            &TABLE
        }
        fn is_shared(&self) -> bool {
            Arc::strong_count(&self.0) > 1
        }
    }

    #[test]
    fn what_is_shared_is_used_by_several_and_closed_only_after_them() {
        let table = Common::table();
        let first = table.open(|| Ok(Common(Arc::new(5)))).unwrap();
        let (inner, refused) = table
            .share(first, |a| Ok((table.share(first, |b| Ok(*a.0 + *b.0)), status(table.close(first, |_| Ok(()))))))
            .unwrap();
        assert_eq!((inner.unwrap(), refused), (10, Status::NARROWS_ERROR_BUSY));
        assert_eq!(table.share(first, |a| Ok(*a.0)).unwrap(), 5, "a refused close changes nothing");
        table.close(first, |_| Ok(())).unwrap();
        assert_eq!(status(table.share(first, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);

        let second = table.open(|| Ok(Common(Arc::new(6)))).unwrap();
        let broken = table.share(second, |_| -> Result<()> { panic!("of a test") });
        assert_eq!(status(broken), Status::NARROWS_ERROR_INTERNAL);
        assert_eq!(status(table.share(second, |_| Ok(()))), Status::NARROWS_ERROR_INTERNAL, "it stays broken");
        assert_eq!(status(table.close(second, |_| Ok(()))), Status::NARROWS_ERROR_INTERNAL);
        assert_eq!(status(table.close(second, |_| Ok(()))), Status::NARROWS_ERROR_CLOSED);
    }

    #[test]
    fn what_this_process_may_not_use_stays() {
        let table: Table<Thing> = Table::new();
        let foreign = table.open(|| Ok(Thing(4))).unwrap();
        for _ in 0..2 {
            assert_eq!(status(table.with(foreign, |_| Ok(()))), Status::NARROWS_ERROR_MISUSE);
            assert_eq!(status(table.close(foreign, |_| Ok(()))), Status::NARROWS_ERROR_MISUSE);
        }
    }

    #[test]
    fn nothing_is_made_without_a_place_and_no_place_lost_without_an_object() {
        let table: Table<Thing> = Table::new();
        for _ in 0..2 {
            assert_eq!(status(table.open(|| Err(Failure::misuse("no")))), Status::NARROWS_ERROR_MISUSE);
            assert_eq!(status(table.open(|| panic!("of a test"))), Status::NARROWS_ERROR_INTERNAL);
        }
        assert_eq!(lock(&table.places).made, 1);
        lock(&table.places).made = PLACES_MAX;
        table.open(|| Ok(Thing(1))).unwrap();
        let full = table.open(|| unreachable!("it would be dropped, and close what it owns"));
        assert_eq!(status(full), Status::NARROWS_ERROR_LIMIT);
    }
}
