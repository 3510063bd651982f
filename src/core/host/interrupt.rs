//! Ctrl-C and SIGTERM as a flag of the process. A long run that can stop with a partial report
//! checks it between steps; every other run is ended by [`Interrupt::end_others`]. A second signal
//! ends the process at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

use super::files;

/// Set once somebody asked to stop; the default is never set.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The flag of the process.
static FLAG: OnceLock<Interrupt> = OnceLock::new();

/// Whether a run checks the flag.
static LISTENED: AtomicBool = AtomicBool::new(false);

/// How often the flag is looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// A run that checks the flag and takes longer to end is told to be on its way out.
const LOOKS_BEFORE_A_WORD: u32 = 8;

impl Interrupt {
    fn of_the_process() -> io::Result<Self> {
        if let Some(interrupt) = FLAG.get() {
            return Ok(interrupt.clone());
        }
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal sets the flag, the next finds it set.
            signal_hook::flag::register_conditional_shutdown(signal, 4, Arc::clone(&interrupt.0))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))?;
        }
        // A file beyond the size limit is an error of the write, not the end of the process.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(FLAG.get_or_init(|| interrupt).clone())
    }

    /// The flag, for a run that checks it from here on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> io::Result<Self> {
        LISTENED.store(true, Ordering::Relaxed);
        Self::of_the_process()
    }

    /// Takes the signals over: a run that does not check the flag is ended with exit code 4, its
    /// temporary files and folders removed.
    ///
    /// # Errors
    /// The system refuses.
    pub fn end_others() -> io::Result<()> {
        let interrupt = Self::of_the_process()?;
        let watch = move || {
            while !interrupt.is_set() {
                std::thread::sleep(PATIENCE);
            }
            if !LISTENED.load(Ordering::Relaxed) {
                files::remove_leftovers();
                eprintln!("error: interrupted");
                std::process::exit(4);
            }
            std::thread::sleep(PATIENCE * LOOKS_BEFORE_A_WORD);
            eprintln!("stopping after this step; again to stop now");
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(|_| ())
    }

    /// Whether somebody asked to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
