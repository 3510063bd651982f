//! Job scripts: a Slurm array, or lines for GNU parallel. Each task downloads what its part needs,
//! runs `layers --part i/N`, and the last step joins the reports.

use std::fmt::Write as _;

use super::PartPlan;

/// What a script needs to know besides the parts.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// RANGE as typed.
    pub range: &'a str,
    /// Tokens fed to each layer.
    pub tokens: usize,
    /// Where the files are downloaded from, without a slash at the end.
    pub base_url: &'a str,
    /// The parts.
    pub parts: &'a [PartPlan],
}

impl Job<'_> {
    /// How `layers` is told to feed so many tokens: the last two, where there are more, singly.
    fn calls(&self) -> String {
        let singles = self.tokens.saturating_sub(1).min(2);
        format!("--prefill {} --singles {singles}", self.tokens - singles)
    }
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    let quoted = shlex::Quoter::new().allow_nul(true).quote(text);
    quoted.expect("no byte is refused").into_owned()
}

/// The URL of every file of every part, each once, config and index first.
#[must_use]
pub fn urls(job: &Job<'_>) -> Vec<String> {
    let mut names = vec!["config.json", "model.safetensors.index.json"];
    for file in job.parts.iter().flat_map(|part| &part.files) {
        if !names.contains(&file.as_str()) {
            names.push(file);
        }
    }
    let url = |name: &&str| format!("{}/{name}", job.base_url);
    names.iter().map(url).collect()
}

/// A script for `sbatch` that is a plain script of one part as well: `PART=3 bash script`.
#[must_use]
pub fn slurm(job: &Job<'_>) -> String {
    let of = job.parts.len();
    let memory = job.parts.iter().map(|part| part.memory_bytes).max();
    // Slurm counts in MiB; a quarter more for the page cache that the job is charged.
    let memory_mib = memory.unwrap_or(0) / 4 * 5 / (1 << 20) + 1;
    let mut text = format!(
        "#!/usr/bin/env bash\n\
         # k3-verify layers {range}, part i of {of}. Submit: sbatch --array=1-{of} SCRIPT\n\
         # Then, in the same folder: k3-verify merge parts/*\n\
         #SBATCH --job-name=k3-layers\n\
         #SBATCH --array=1-{of}\n\
         #SBATCH --mem={memory_mib}M\n\
         set -eu\n\
         part=${{SLURM_ARRAY_TASK_ID:-${{PART:?a part from 1 to {of}}}}}\n\
         model=${{MODEL:-model}}\n\
         mkdir -p -- \"$model\" parts\n\
         case \"$part\" in\n",
        range = job.range,
    );
    for part in job.parts {
        let files: Vec<String> = part.files.iter().map(|file| quoted(file)).collect();
        let _ = writeln!(text, "  {}) set -- {} ;;", part.index, files.join(" "));
    }
    let _ = write!(
        text,
        "  *) echo \"part $part: expected 1 to {of}\" >&2; exit 2 ;;\n\
         esac\n\
         for file in config.json model.safetensors.index.json \"$@\"; do\n\
         \x20 if [ -e \"$model/$file\" ]; then continue; fi\n\
         \x20 partial=\"$model/$file.$part.incomplete\"\n\
         \x20 curl --fail --location --continue-at - --output \"$partial\" \\\n\
         \x20   --url {base}/\"$file\"\n\
         \x20 mv -- \"$partial\" \"$model/$file\"\n\
         done\n\
         code=0\n\
         k3-verify layers {range} --model \"$model\" --part \"$part/{of}\" {calls} \\\n\
         \x20 --out \"parts/$part\" --resume || code=$?\n\
         exit \"$code\"\n",
        base = quoted(job.base_url),
        calls = job.calls(),
        range = job.range,
    );
    text
}

/// One command line per part, for `parallel < FILE` or any shell.
#[must_use]
pub fn parallel(job: &Job<'_>) -> String {
    let of = job.parts.len();
    let line = |part: &PartPlan| {
        format!(
            "k3-verify layers {} --model \"${{MODEL:-model}}\" --part {}/{of} {} --out \
             parts/{} --resume\n",
            job.range,
            part.index,
            job.calls(),
            part.index
        )
    };
    job.parts.iter().map(line).collect()
}
