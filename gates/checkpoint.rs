//! The strict reader on the tiny checkpoint.

use k3_checkpoint::UnusedClass;
use k3_checkpoint::binding::Binding;
use k3_checkpoint::names::Role;
use k3_checkpoint::store::Checkpoint;

use super::support::tiny;

/// A complete small checkpoint binds; the other reader sees the same bytes.
#[test]
fn tiny_checkpoint_binds_and_reads_as_the_safetensors_crate_does() {
    let checkpoint = Checkpoint::open(&tiny()).unwrap();
    let config = k3_checkpoint::config::read(&checkpoint.config_path()).unwrap();
    let binding = Binding::bind(&checkpoint, &config).unwrap();
    assert_eq!(checkpoint.notes(), []);
    assert_eq!(checkpoint.tensor_bytes(), 4_685_792);
    assert_eq!(binding.bound_count() + binding.unused().len(), checkpoint.len());
    let unused: Vec<_> = binding.unused_counts().into_iter().collect();
    let vision = [(UnusedClass::VisionTower, 2), (UnusedClass::MmProjector, 1)];
    assert_eq!(unused[..2], vision);
    assert_eq!(unused[2..], [(UnusedClass::ResidualBeforeFirstBank, 2)]);
    assert_eq!(binding.layer_tensor(0, Role::AttentionResNorm), None);
    assert!(binding.layer_tensor(0, Role::KdaQProj).is_some());
    assert!(binding.layer_tensor(3, Role::KdaQProj).is_none());
    assert!(binding.expert(0, 0).is_none() && binding.expert(12, 7).is_some());
    let mut compared = 0;
    for shard in checkpoint.shards() {
        let bytes = std::fs::read(shard.path()).unwrap();
        let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in other.tensors() {
            let info = checkpoint.tensor(&name).unwrap();
            assert_eq!(info.shape, view.shape());
            assert_eq!(info.dtype.name(), view.dtype().to_string());
            assert_eq!(checkpoint.read(&name).unwrap(), view.data());
            compared += 1;
        }
    }
    assert_eq!(compared, checkpoint.len());
}

/// Item 12: what the `safetensors` crate opens, this reader opens, and sees the same in it; what it
/// refuses, the crate refuses, unless two names are equal or one is longer than the limit.
mod item_12_what_the_crate_opens {
    use std::fmt::Write as _;

    use k3_checkpoint::header::MAX_NAME_BYTES;
    use k3_checkpoint::{Checkpoint, Dtype};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde::de::{MapAccess, Visitor};

    /// Opened by this reader, one row per tensor by name; `None` if refused.
    type Seen = Option<Vec<(String, String, Vec<usize>, Vec<u8>)>>;

    fn ours(bytes: &[u8]) -> Seen {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let checkpoint = Checkpoint::open_file(&path).ok()?;
        let rows = checkpoint.tensors().map(|info| {
            let dtype = info.dtype.name().to_owned();
            let data = checkpoint.read(info.name).unwrap();
            (info.name.to_owned(), dtype, info.shape.to_vec(), data)
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        Some(rows)
    }

    fn theirs(bytes: &[u8]) -> Seen {
        let file = safetensors::SafeTensors::deserialize(bytes).ok()?;
        let rows = file.tensors().into_iter().map(|(name, view)| {
            (name, view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec())
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        Some(rows)
    }

    /// Every key of every object, in the order of the text, with the depth it is at.
    #[derive(Default)]
    struct Keys(Vec<Vec<String>>);

    impl<'de> Visitor<'de> for &mut Keys {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut keys = Vec::new();
            while let Some(key) = map.next_key::<String>()? {
                let inner: &serde_json::value::RawValue = map.next_value()?;
                let mut json = serde_json::Deserializer::from_str(inner.get());
                let _ = serde::Deserializer::deserialize_map(&mut json, &mut *self);
                keys.push(key);
            }
            self.0.push(keys);
            Ok(())
        }
    }

    /// Whether two names or keys of one object are equal, or one is too long: the two things in
    /// which this reader is stricter.
    fn stricter(header: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(header) else {
            return false;
        };
        let mut keys = Keys::default();
        let mut json = serde_json::Deserializer::from_str(text);
        let _ = serde::Deserializer::deserialize_map(&mut json, &mut keys);
        keys.0.iter_mut().any(|keys| {
            keys.sort();
            keys.windows(2).any(|pair| pair[0] == pair[1])
                || keys.iter().any(|key| key.len() > MAX_NAME_BYTES)
        })
    }

    #[track_caller]
    fn same(header: &[u8], data: &[u8]) -> Result<bool, TestCaseError> {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, data].concat();
        let (ours, theirs) = (ours(&bytes), theirs(&bytes));
        if ours.is_none() && theirs.is_some() && stricter(header) {
            return Ok(false);
        }
        let shown = String::from_utf8_lossy(&header[..header.len().min(2000)]);
        prop_assert_eq!(&ours, &theirs, "header {:?}, {} bytes of data", shown, data.len());
        Ok(ours.is_some())
    }

    #[derive(Debug, Clone)]
    struct Entry {
        name: String,
        dtype: String,
        shape: Vec<u64>,
        /// How the entry is written: 0 to 3 as it should be, then odd forms.
        form: usize,
        extra: Option<(String, String)>,
        /// Added to the offsets: 0 nearly always.
        slip: (i64, i64),
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let names = select(vec!["w", "a.b", "\\u0077", "", "caf\\u00e9", "é", "x\\n", "__meta__"]);
        let known: Vec<_> = Dtype::ALL.iter().map(|dtype| dtype.name().to_owned()).collect();
        let dtypes = prop_oneof![30 => select(known), 1 => select(vec!["F31", "f32", ""])
            .prop_map(str::to_owned)];
        let size = prop_oneof![20 => 0..4_u64, 1 => select(vec![1 << 32, u64::MAX])];
        let rank = prop_oneof![20 => vec(size.clone(), 0..4), 1 => vec(Just(1_u64), 9..40),
            2 => vec(size, 1..12)];
        let values = ["1", "null", "[1,{\"a\":2}]", "\"}{\"", "{}", "-1.5e3"].map(str::to_owned);
        let keys = ["strides", "dtype", "Shape", "", "note"].map(str::to_owned);
        let extra =
            proptest::option::weighted(0.1, (select(keys.to_vec()), select(values.to_vec())));
        let slip = prop_oneof![40 => Just((0, 0)), 1 => (-2..3_i64, -2..3_i64)];
        (names, any::<u16>(), dtypes, rank, 0..16_usize, extra, slip).prop_map(
            |(name, number, dtype, shape, form, extra, slip)| Entry {
                // Numbered, so that equal names are rare.
                name: format!("{name}{}", number % 64),
                dtype,
                shape,
                form,
                extra,
                slip,
            },
        )
    }

    /// The header's text, and the bytes that its tensors take.
    fn written(entries: &[Entry], metadata: &str, around: (&str, &str)) -> (String, u64) {
        let (mut text, mut at) = (format!("{}{{", around.0), 0_u64);
        let mut separator = "";
        if !metadata.is_empty() {
            write!(text, "\"__metadata__\":{metadata}").unwrap();
            separator = ",";
        }
        for entry in entries {
            let bits = Dtype::parse(&entry.dtype).map_or(8, Dtype::bits);
            let elements = entry.shape.iter().try_fold(1_u64, |n, &size| n.checked_mul(size));
            let bytes = elements.and_then(|n| n.checked_mul(bits)).unwrap_or(0) / 8;
            let bytes = if bytes > 1 << 20 { 0 } else { bytes };
            let (start, end) = (at as i64 + entry.slip.0, (at + bytes) as i64 + entry.slip.1);
            at += bytes;
            let dtype = match entry.form {
                4 => format!("{{\"{}\":null}}", entry.dtype),
                5 => format!("{{\"{}\":1}}", entry.dtype),
                _ => format!("\"{}\"", entry.dtype),
            };
            let shape = match entry.form {
                6 => format!("{:?}", entry.shape.iter().map(|&n| n as f64).collect::<Vec<_>>()),
                7 => format!(" [ {} ]", format!("{:?}", entry.shape).trim_matches(['[', ']'])),
                _ => format!("{:?}", entry.shape),
            };
            let offsets = match entry.form {
                8 => format!("[{start}]"),
                9 => format!("[{start},{end},{end}]"),
                10 => format!("[{start},{end}.0]"),
                _ => format!("[{start},{end}]"),
            };
            let extra = entry.extra.as_ref();
            let extra = extra.map_or(String::new(), |(key, value)| format!(",\"{key}\":{value}"));
            let body = match entry.form {
                11 => format!("[{dtype},{shape},{offsets}]"),
                12 => format!("[{dtype},{shape},{offsets},null]"),
                13 => format!("{{\"data_offsets\":{offsets},\"dtype\":{dtype}{extra}}}"),
                14 => format!(
                    "{{\n\t\"shape\":{shape}, \"dtype\" :{dtype}{extra},\
                     \"data_offsets\":{offsets}\r\n}}"
                ),
                _ => format!(
                    "{{\"dtype\":{dtype},\"shape\":{shape},\"data_offsets\":{offsets}\
                     {extra}}}"
                ),
            };
            write!(text, "{separator}\"{}\":{body}", entry.name).unwrap();
            separator = ",";
        }
        text.push('}');
        text.push_str(around.1);
        (text, at)
    }

    const METADATA: [&str; 8] = [
        "",
        "",
        "{}",
        "null",
        "{\"format\":\"pt\"}",
        "{\"a\":1}",
        "[]",
        "{\"a\":\"1\",\"a\":\"2\"}",
    ];
    const AROUND: [&str; 12] =
        ["", "", "", " ", "   ", "\n", "\t", "\r\n", "\0", "\u{c}", "{}", "\u{feff}"];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None,
            ..ProptestConfig::default() })]

        #[test]
        fn generated_headers(
            entries in vec(entry(), 0..5),
            metadata in select(METADATA.to_vec()),
            front in select(AROUND.to_vec()),
            back in select(AROUND.to_vec()),
            spare in prop_oneof![20 => Just(0_i64), 1 => -3..4_i64],
        ) {
            let front = if back.is_empty() { front } else { "" };
            let (header, bytes) = written(&entries, metadata, (front, back));
            let data: Vec<u8> = (0..bytes.saturating_add_signed(spare)).map(|n| n as u8).collect();
            same(header.as_bytes(), &data)?;
        }

        /// Sound headers with a few bytes put over, cut out or repeated.
        #[test]
        fn damaged_headers(
            mut entries in vec(entry(), 1..4),
            changes in vec((any::<prop::sample::Index>(), 0..3_u8, any::<u8>()), 0..3),
        ) {
            for entry in &mut entries {
                (entry.form, entry.slip, entry.extra) = (0, (0, 0), None);
            }
            let (header, bytes) = written(&entries, "{\"format\":\"pt\"}", ("", "  "));
            let mut header = header.into_bytes();
            for (place, kind, byte) in changes {
                let at = place.index(header.len());
                match kind {
                    0 => header[at] = byte,
                    1 => drop(header.remove(at)),
                    _ => header.insert(at, header[at]),
                }
            }
            same(&header, &vec![7; bytes as usize])?;
        }
    }

    /// The generator makes files that both open and files that both refuse; each oddity by itself
    /// is opened.
    #[test]
    fn each_oddity_by_itself() {
        let entry = |form, extra: Option<(&str, &str)>, shape: &[u64]| Entry {
            name: "w".to_owned(),
            dtype: "F32".to_owned(),
            shape: shape.to_vec(),
            form,
            extra: extra.map(|(key, value)| (key.to_owned(), value.to_owned())),
            slip: (0, 0),
        };
        for (entry, metadata, around) in [
            (entry(0, None, &[2]), "null", ("", "")),
            (entry(0, None, &[2]), "", (" \n\t", "\r\n \t")),
            (entry(0, Some(("strides", "[1]")), &[2]), "", ("", "")),
            (entry(0, None, &[1; 9]), "", ("", "")),
            (entry(0, None, &[1; 1000]), "", ("", "")),
            (entry(4, None, &[2]), "", ("", "")),
            (entry(11, None, &[2]), "", ("", "")),
            (entry(14, None, &[2]), "", ("", "")),
        ] {
            let (header, bytes) = written(&[entry], metadata, around);
            assert!(same(header.as_bytes(), &vec![1; bytes as usize]).unwrap(), "{header}");
        }
        let mut long = entry(0, None, &[2]);
        for (length, opened) in [(2000, true), (MAX_NAME_BYTES, true), (5_000_000, false)] {
            long.name = "n".repeat(length);
            let (header, bytes) = written(std::slice::from_ref(&long), "", ("", ""));
            assert_eq!(same(header.as_bytes(), &vec![1; bytes as usize]).unwrap(), opened);
        }
    }

    /// Tensors of every dtype beside those asked for: listed, and nobody is kept from the others.
    #[test]
    fn every_dtype_of_the_crate_is_sized() {
        let entries: Vec<Entry> = Dtype::ALL
            .iter()
            .map(|dtype| Entry {
                name: dtype.name().to_owned(),
                dtype: dtype.name().to_owned(),
                shape: vec![4, 2],
                form: 0,
                extra: None,
                slip: (0, 0),
            })
            .collect();
        let (header, bytes) = written(&entries, "", ("", ""));
        assert!(same(header.as_bytes(), &vec![1; bytes as usize]).unwrap());
    }

    /// A key that is ignored by one reader must not be an error of the other.
    #[test]
    fn the_keys_visitor_sees_equal_names() {
        assert!(stricter(br#"{"w":{},"\u0077":{}}"#));
        assert!(stricter(br#"{"w":{"shape":[],"shape":[]}}"#));
        assert!(!stricter(br#"{"w":{"shape":[]},"v":{"shape":[]}}"#));
    }
}
