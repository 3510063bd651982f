//! What the tests share: both encoders over K3's ranks, small tables, rank files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k3_checkpoint::Malformed;
use k3_text::{K3_RANKS, Markers, RankTable, Special, Tokenizer};

/// K3's vocabulary as the crate carries it.
pub fn built_in() -> &'static Tokenizer {
    static OPEN: OnceLock<Tokenizer> = OnceLock::new();
    OPEN.get_or_init(|| Tokenizer::built_in().unwrap())
}

/// The same ranks as a table, encoded by our own merge.
pub fn table() -> &'static Tokenizer {
    static OPEN: OnceLock<Tokenizer> = OnceLock::new();
    OPEN.get_or_init(|| {
        let tokens = (0..K3_RANKS as u32).map(|id| built_in().decode(&[id]).unwrap());
        let text = rank_file(&tokens.collect::<Vec<_>>());
        let table = RankTable::parse(text.as_bytes(), Path::new("K3")).unwrap();
        Tokenizer::of_table(table, built_in().markers().clone())
    })
}

/// Both, with a name for messages.
pub fn both() -> [(&'static str, &'static Tokenizer); 2] {
    [("the crate", built_in()), ("the table", table())]
}

/// The text of a rank file: tokens in the order of their ranks.
pub fn rank_file(tokens: &[Vec<u8>]) -> String {
    let lines = tokens.iter().enumerate();
    let lines = lines.map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token)));
    lines.collect()
}

/// The 256 single bytes in their order, then `further`.
pub fn bytes_and(further: &[&str]) -> Vec<Vec<u8>> {
    let single = (0..=u8::MAX).map(|byte| vec![byte]);
    let further = further.iter().map(|token| token.as_bytes().to_vec());
    single.chain(further).collect()
}

/// A small vocabulary.
pub fn small(further: &[&str]) -> Tokenizer {
    let text = rank_file(&bytes_and(further));
    let table = RankTable::parse(text.as_bytes(), Path::new("small")).unwrap();
    Tokenizer::of_table(table, Markers::new(BTreeMap::new()))
}

/// Plain ids.
pub fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Special::Text)
}

/// What a rank file is refused with.
pub fn refused(text: &str) -> Malformed {
    RankTable::parse(text.as_bytes(), Path::new("tiktoken.model")).unwrap_err()
}

/// A folder with both files of a vocabulary.
pub fn write_folder(folder: &Path, ranks: &str, config: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tiktoken.model"), ranks).unwrap();
    fs::write(folder.join("tokenizer_config.json"), config).unwrap();
}
