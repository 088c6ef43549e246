//! Threads that share the work of one call.
//!
//! A decoding step is some hundred products of some ten microseconds each. A general pool wakes sleeping threads for each of
//! them, which costs more than the product; here the caller works itself, and helpers that have just worked look out for more
//! a little before they sleep. One call at a time has the helpers; another that comes meanwhile, say from a second device,
//! is done by its own thread.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};

/// Rounds that an idle helper looks out before it sleeps.
const LOOKS: usize = 2000;

type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Team {
    /// Whether a caller has the helpers.
    taken: AtomicBool,
    /// Even: no work. Odd: work number so and so. Above it, in the high half, how many helpers are in it.
    state: AtomicUsize,
    work: UnsafeCell<Option<Task<'static>>>,
    /// The next task, and how many there are.
    next: AtomicUsize,
    count: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    helpers: OnceLock<Vec<Helper>>,
}

struct Helper {
    asleep: AtomicBool,
    thread: Thread,
}

// SAFETY: `work` is written only by the caller that has `taken` the team, while `state` is even and nobody is inside.
unsafe impl Sync for Team {}

const HALF: u32 = usize::BITS / 2;
const INSIDE: usize = 1 << HALF;
const NUMBER: usize = INSIDE - 1;

static TEAM: Team = Team {
    taken: AtomicBool::new(false),
    state: AtomicUsize::new(0),
    work: UnsafeCell::new(None),
    next: AtomicUsize::new(0),
    count: AtomicUsize::new(0),
    panic: Mutex::new(None),
    helpers: OnceLock::new(),
};

/// Threads that may work on one call: those that the process may run at once.
pub(crate) fn size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Runs `task(0)`, …, `task(count - 1)`, in any order, several at once.
///
/// # Panics
/// When a task does, with its words, after all have ended.
pub(crate) fn run(count: usize, task: Task<'_>) {
    if count < 2 || size() < 2 || TEAM.taken.swap(true, Ordering::Acquire) {
        (0..count).for_each(task);
        return;
    }
    let panic = TEAM.lead(count, task);
    TEAM.taken.store(false, Ordering::Release);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Team {
    fn lead(&'static self, count: usize, task: Task<'_>) -> Option<Box<dyn Any + Send>> {
        let helpers = self.helpers.get_or_init(|| self.hire());
        // SAFETY: forgets how long the task lives. It is taken back below, when nobody is inside any more.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the team is ours, and nobody is inside.
        unsafe { *self.work.get() = Some(task) };
        self.next.store(0, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.state.fetch_add(1, Ordering::SeqCst); // odd: open
        for helper in &helpers[..helpers.len().min(count - 1)] {
            if helper.asleep.swap(false, Ordering::SeqCst) {
                helper.thread.unpark();
            }
        }
        self.take_tasks(task);
        let mut state = self.state.fetch_add(1, Ordering::AcqRel) + 1; // even: closed
        while state >= INSIDE {
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        if state & NUMBER >= NUMBER - 1 {
            self.state.store(0, Ordering::Release);
        }
        // SAFETY: as above.
        unsafe { *self.work.get() = None };
        self.panic.lock().map_or(None, |mut panic| panic.take())
    }

    fn hire(&'static self) -> Vec<Helper> {
        let hire = |i| {
            let name = format!("product-{i}");
            let helper = thread::Builder::new()
                .name(name)
                .spawn(move || self.help(i - 1));
            helper.ok().map(|handle| Helper {
                asleep: AtomicBool::new(false),
                thread: handle.thread().clone(),
            })
        };
        (1..size()).map_while(hire).collect()
    }

    /// The life of a helper.
    fn help(&self, number: usize) {
        let mut looks = 0;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & 1 == 1 {
                let entered = self.state.compare_exchange_weak(
                    state,
                    state + INSIDE,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if entered.is_ok() {
                    // SAFETY: the work stays until nobody is inside.
                    if let Some(task) = unsafe { *self.work.get() } {
                        self.take_tasks(task);
                    }
                    self.state.fetch_sub(INSIDE, Ordering::Release);
                    looks = 0;
                    self.look_away(state);
                }
                continue;
            }
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
                continue;
            }
            if let Some(me) = self.helpers.get().and_then(|helpers| helpers.get(number)) {
                me.asleep.store(true, Ordering::SeqCst);
                // Work that came in between has seen us awake.
                while me.asleep.load(Ordering::SeqCst) && self.state.load(Ordering::SeqCst) & 1 == 0
                {
                    thread::park();
                }
                me.asleep.store(false, Ordering::SeqCst);
                looks = 0;
            } else {
                thread::yield_now();
            }
        }
    }

    /// Waits until the work that has just been done is closed.
    fn look_away(&self, state: usize) {
        while self.state.load(Ordering::Relaxed) & NUMBER == state & NUMBER {
            std::hint::spin_loop();
        }
    }

    fn take_tasks(&self, task: Task<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(number)))
                && let Ok(mut kept) = self.panic.lock()
            {
                kept.get_or_insert(panic);
            }
        }
    }
}
