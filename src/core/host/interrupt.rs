//! Ctrl-C and SIGTERM. A long run that can stop with a partial report checks a flag between steps;
//! every other run is ended by [`Interrupt::end_others`]. A second signal ends the process at once.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::files;

/// Set once somebody asked to stop; the default is never set.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The flag of the process.
static FLAG: OnceLock<Interrupt> = OnceLock::new();

/// Whether a run checks the flag.
static LISTENED: AtomicBool = AtomicBool::new(false);

/// What a run that checks the flag is doing.
static STEP: Mutex<String> = Mutex::new(String::new());

/// A run that checks the flag and takes longer to end is told to be on its way out.
const BEFORE_A_WORD: Duration = Duration::from_millis(400);

impl Interrupt {
    fn of_the_process() -> Self {
        FLAG.get_or_init(Self::default).clone()
    }

    /// The flag, for a run that checks it from here on.
    #[must_use]
    pub fn listen() -> Self {
        LISTENED.store(true, Ordering::Relaxed);
        Self::of_the_process()
    }

    /// Says what the run does until it checks the flag again, such as `layer 3`.
    pub fn begin(&self, step: &str) {
        step.clone_into(&mut STEP.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes the signals over: a run that does not check the flag is ended with exit code 4, its
    /// temporary files and folders removed.
    ///
    /// # Errors
    /// The system refuses.
    pub fn end_others() -> io::Result<()> {
        let interrupt = Self::of_the_process();
        // A process that cannot even clean up ends without. This looks before the thread below
        // hears of the signal: after it, the first one would end the process as well.
        let is_stuck = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 4, Arc::clone(&is_stuck))?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        // A file beyond the size limit is an error of the write, not the end of the process.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let watch = move || {
            for _ in signals.forever() {
                let is_first = !interrupt.0.swap(true, Ordering::Relaxed);
                if !is_first || !LISTENED.load(Ordering::Relaxed) {
                    is_stuck.store(true, Ordering::Relaxed);
                    let line = if is_first { "interrupted" } else { "stopped by a second signal" };
                    end_now(format_args!("{line}"), 4);
                }
                std::thread::sleep(BEFORE_A_WORD);
                let step = STEP.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let step = if step.is_empty() { "this step" } else { &step };
                say(format_args!("stopping after {step}; again to stop now"));
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(|_| ())
    }

    /// Whether somebody asked to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A line on stderr; where it is closed, the exit code has to do.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Ends the process with an error line. What it has started is ended and what is temporary is
/// removed first.
pub fn end_now(line: std::fmt::Arguments<'_>, code: i32) -> ! {
    std::mem::forget(ENDING.try_lock());
    // A thread that holds them may be the one that cannot go on.
    if let Ok(groups) = GROUPS.try_lock().as_deref() {
        for signal in [Signal::TERM, Signal::KILL] {
            for group in groups {
                let _ = kill_process_group(*group, signal);
            }
            if !groups.is_empty() && signal == Signal::TERM {
                std::thread::sleep(BEFORE_A_WORD);
            }
        }
    }
    files::remove_leftovers();
    say(format_args!("error: {line}"));
    signal_hook::low_level::exit(code)
}

/// Held by a thread that ends the process.
static ENDING: Mutex<()> = Mutex::new(());

/// Waits for the end of the process if another thread is ending it: what this one found without
/// its temporary files is nothing to report.
pub fn wait_for_the_end() {
    drop(ENDING.lock());
}

/// Process groups that this process has started and not yet seen the end of.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A process group that is ended where this process is ended early.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// The group of a child that leads one.
    #[must_use]
    pub fn of(child: &std::process::Child) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).extend(pid);
        Self(pid)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| Some(*group) != self.0);
    }
}
