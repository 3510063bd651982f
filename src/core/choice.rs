//! Values that are chosen by name: on the command line, in traces, in reports.

/// A closed set of named values.
pub trait Choice: Copy + Send + Sync + 'static {
    /// Every value that can be asked for, in the order in which help lists them.
    const ALL: &'static [Self];

    /// The name, as typed and as reported.
    fn name(self) -> &'static str;

    /// What the value means, in a line of help.
    fn about(self) -> &'static str;

    /// The value of that name.
    #[must_use]
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}
