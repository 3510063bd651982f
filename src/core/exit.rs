//! The exit codes, with one meaning each, and their precedence when several apply.

use std::error::Error;
use std::process::ExitCode;

/// What a command's process exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// 0: everything asked for was checked and conforms.
    Conforms,
    /// 1: something was compared and disagrees, or a run's result is invalid.
    Disagrees,
    /// 2: a bad argument, found before any work.
    Usage,
    /// 3: an input is missing, unreadable or corrupt.
    BadInput,
    /// 4: nothing selected, something expected was absent (NOT RUN), or interrupted.
    Incomplete,
    /// 5: it would not fit the memory limit.
    Refused,
}

impl Exit {
    /// The number the process ends with.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Conforms => 0,
            Self::Disagrees => 1,
            Self::Usage => 2,
            Self::BadInput => 3,
            Self::Incomplete => 4,
            Self::Refused => 5,
        }
    }

    /// What the number says; another than those above is an input that could not be used.
    #[must_use]
    pub fn of_code(code: u8) -> Self {
        let all = [Self::Conforms, Self::Disagrees, Self::Usage, Self::Incomplete, Self::Refused];
        all.into_iter().find(|exit| exit.code() == code).unwrap_or(Self::BadInput)
    }

    /// The verdict of a comparison that ends so.
    #[must_use]
    pub fn verdict(self) -> &'static str {
        match self {
            Self::Conforms => "CONFORMS",
            Self::Disagrees => "DOES NOT CONFORM",
            _ => "INCOMPLETE",
        }
    }

    /// Of two codes that both apply, the one to report: 2, 5, 3, 1, 4, 0 in this order.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.rank() <= other.rank() { self } else { other }
    }

    fn rank(self) -> u8 {
        match self {
            Self::Usage => 0,
            Self::Refused => 1,
            Self::BadInput => 2,
            Self::Disagrees => 3,
            Self::Incomplete => 4,
            Self::Conforms => 5,
        }
    }
}

/// An area's error that knows how a command ends for it.
pub trait Exits: Error + Send + Sync + 'static {
    /// The exit code: an input that is missing, unreadable or corrupt, unless the area says more.
    fn exit(&self) -> Exit {
        Exit::BadInput
    }

    /// What to try.
    fn hint(&self) -> Option<&'static str> {
        None
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    /// A disagreement must not mask a missing input, nor NOT RUN a disagreement.
    #[test]
    fn the_documented_order_decides_between_two_codes() {
        let order = [
            Exit::Usage,
            Exit::Refused,
            Exit::BadInput,
            Exit::Disagrees,
            Exit::Incomplete,
            Exit::Conforms,
        ];
        for (place, &strong) in order.iter().enumerate() {
            for &weak in &order[place..] {
                assert_eq!(strong.and(weak), strong);
                assert_eq!(weak.and(strong), strong);
            }
        }
        assert_eq!(order.map(Exit::code), [2, 5, 3, 1, 4, 0]);
        assert_eq!(order.map(|exit| Exit::of_code(exit.code())), order);
    }
}
