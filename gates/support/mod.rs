//! What tests of the command line share: running the binary, its code, one error line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the binary and checks the exit code; an error is one line and no panic. Gives stdout and
/// stderr.
pub fn expect(arguments: &[&str], code: i32) -> (String, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(arguments)
        .env_remove("K3_MODEL")
        .output()
        .expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    if code == 3 {
        let errors = stderr.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{stderr}");
    }
    (stdout, stderr)
}

/// A file of the shipped fixtures.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
