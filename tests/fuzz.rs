//! Bytes from outside: whatever they are, nothing panics, nothing allocates more than its cap, and what was written is
//! read back.
//!
//! Each target runs its kept corpus (`tests/__fuzz__`) and some hundred new inputs; `./test fuzz --minutes 10` runs
//! each for long. A failure prints a seed for `BOLERO_RANDOM_SEED`. Random bytes would almost never pass a proof; so
//! inputs are scripts that edit a genuine value and may sign it again, as a faulty server could.

use axum::extract::connect_info::MockConnectInfo;
use flate2::{Compress, Compression, FlushCompress, write::GzEncoder};
use headcount::bloom::{Bloom, Shape};
use headcount::fingerprint::FingerprintKey;
use headcount::internals::{Values, keyed_hash, signed_override};
use headcount::round::{
    ClassView, Entry, Gap, Identity, LineView, LogPart, Looked, LookedBeside, Node, OtherGeneration, OwnRecords,
    Publish, Published, Reply, Request, SeatReply, Stored, Version,
};
use headcount::time::{ManualClock, Slot, Timestamp};
use headcount::{Builder, FilterStore, Headcount, OnConflict, StoreError, TokenSource};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tower::{Layer, ServiceExt, service_fn};

const SLOT: Slot = Slot(29_000_000);
const VERSION: &str = "k3v9-1";
const GENERATION: u64 = 7;
const HEADER_BYTES: usize = 48;
/// Memory beside the filter: the decompressor's window, and a chunk.
const DECODING_BYTES: u64 = 96 << 10;
const ITERATIONS: usize = 500;

/// How long each target runs, if it should run longer than [`ITERATIONS`].
fn seconds() -> Option<Duration> {
    std::env::var("HEADCOUNT_FUZZ_SECONDS").ok()?.parse().ok().map(Duration::from_secs)
}

fn iterations() -> usize {
    seconds().map_or(ITERATIONS, |_| usize::MAX)
}

/// Runs a target. The state that it uses is not used again after a failure.
macro_rules! fuzz {
    ($target:expr) => {{
        let target = AssertUnwindSafe($target);
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let check = bolero::check!().with_iterations(iterations());
        let check = check.with_test_time(seconds().unwrap_or(Duration::from_secs(60)));
        check.for_each(move |input: &[u8]| {
            let target = &target;
            counted.fetch_add(1, Relaxed);
            target.0(input);
        });
        println!("{} inputs", runs.load(Relaxed));
    }};
}

/// Reads decisions from an input; after its end, zeros.
struct Script<'i>(&'i [u8]);

impl<'i> Script<'i> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let length = N.min(self.0.len());
        bytes[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        bytes
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> usize {
        usize::from(u16::from_le_bytes(self.take()))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn run(&mut self) -> &'i [u8] {
        let length = usize::from(self.u8()).min(self.0.len());
        let (run, rest) = self.0.split_at(length);
        self.0 = rest;
        run
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Random bytes seldom spell words: a byte above ASCII chooses one of these, all others stand for themselves.
fn spelled(input: &[u8], words: &[&str]) -> Vec<u8> {
    match input.split_first() {
        Some((0x80.., choices)) => choices
            .iter()
            .flat_map(|&choice| match words.get(usize::from(choice) % (words.len() + words.len() / 8 + 1)) {
                Some(word) => word.as_bytes().to_vec(),
                None => vec![choice & 0x7f],
            })
            .collect(),
        _ => input.to_vec(),
    }
}

fn key() -> FingerprintKey {
    FingerprintKey::new(b"the key of the whole fleet").unwrap()
}

fn shape(capacity: u64) -> Shape {
    Shape::for_capacity(capacity, 1e-3).unwrap()
}

fn values(capacity: u64) -> Values {
    Values::new(shape(capacity), GENERATION, &key())
}

fn filter(capacity: u64, tokens: u64) -> Bloom {
    let mut filter = Bloom::new(shape(capacity));
    for token in 0..tokens {
        filter.insert(key().fingerprint(&token.to_le_bytes()));
    }
    filter
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn with_payload(value: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut forged = value[..HEADER_BYTES.min(value.len())].to_vec();
    forged.extend_from_slice(payload);
    sign(&mut forged);
    forged
}

/// Gives a value the proof that it should have.
fn sign(value: &mut [u8]) {
    if value.len() >= HEADER_BYTES {
        values(1000).prove(VERSION, value);
    }
}

/// Edits a genuine value as the script says.
fn edit(value: &mut Vec<u8>, script: &mut Script<'_>) {
    for _ in 0..8 {
        if script.is_over() {
            return;
        }
        match script.u8() % 9 {
            0 => {
                let at = script.u16() % value.len().max(1);
                if let Some(byte) = value.get_mut(at) {
                    *byte ^= 1 << (script.u8() % 8);
                }
            }
            1 => value.truncate(script.u16() % (value.len() + 1)),
            2 => value.extend_from_slice(script.run()),
            3 => {
                let at = script.u16() % (value.len() + 1);
                for (byte, new) in value[at..].iter_mut().zip(script.run()) {
                    *byte = *new;
                }
            }
            4 => {
                let at = [4, 8, 16, 24][usize::from(script.u8() % 4)];
                if value.len() >= HEADER_BYTES {
                    value[at..at + 8].copy_from_slice(&script.take::<8>());
                }
            }
            5 => {
                let length = script.u16() * usize::from(script.u8() % 32);
                *value = with_payload(value, &gzip(&vec![script.u8(); length]));
            }
            6 => *value = with_payload(value, script.run()),
            7 => *value = with_payload(value, &gzip(script.run())),
            _ => sign(value),
        }
    }
}

#[test]
fn a_stored_value_is_read_as_it_was_written_or_refused() {
    let values = values(200);
    let genuine = values.encode(SLOT, VERSION, true, &filter(200, 50));
    let most = shape(200).bytes() as u64 + DECODING_BYTES;
    fuzz!(|input: &[u8]| {
        let mut value = genuine.clone();
        edit(&mut value, &mut Script(input));
        for bytes in [value.as_slice(), input] {
            let mut decoded = None;
            let allocated = allocation_counter::measure(|| decoded = Some(values.decode(SLOT, VERSION, bytes)));
            assert!(allocated.bytes_max <= most, "{} bytes were allocated", allocated.bytes_max);
            if let Some(Ok((filter, covered))) = decoded {
                let again = values.encode(SLOT, VERSION, covered, &filter);
                assert_eq!(values.decode(SLOT, VERSION, &again), Ok((filter, covered)));
            }
        }
    });
}

#[test]
fn any_filter_is_read_as_it_was_written() {
    let values = values(200);
    fuzz!(|input: &[u8]| {
        let mut script = Script(input);
        let (slot, covered) = (Slot(script.u64()), script.u8() % 2 == 1);
        let mut filter = Bloom::new(shape(200));
        while !script.is_over() {
            filter.insert(key().fingerprint(&script.take::<2>()));
        }
        let bytes = values.encode(slot, VERSION, covered, &filter);
        assert!(bytes.len() <= values.most_bytes());
        assert_eq!(values.decode(slot, VERSION, &bytes), Ok((filter, covered)));
    });
}

/// A gigabyte of zeros as gzip writes it, in a megabyte.
fn gigabyte_bomb() -> Vec<u8> {
    let mut compress = Compress::new(Compression::best(), false);
    let mut block = Vec::with_capacity(1 << 16);
    compress.compress_vec(&vec![0; 1 << 20], &mut block, FlushCompress::Full).unwrap();
    let mut bomb = gzip(b"")[..10].to_vec();
    (0..1024).for_each(|_| bomb.extend_from_slice(&block));
    bomb
}

#[test]
fn no_hostile_value_allocates_more_than_its_cap() {
    const LARGE: u64 = 1_000_000;
    let large = values(LARGE);
    let genuine = large.encode(SLOT, VERSION, true, &filter(LARGE, 1000));
    let bomb = with_payload(&genuine, &gigabyte_bomb());
    assert!(bomb.len() <= large.most_bytes(), "the bomb gets past the length: {} bytes", bomb.len());
    let of_another = |capacity, generation, slot| {
        Values::new(shape(capacity), generation, &key()).encode(slot, VERSION, true, &filter(capacity, 1000))
    };
    let extended = [genuine.as_slice(), b"!"].concat();
    let padded = [genuine.as_slice(), &vec![0; large.most_bytes()]].concat();
    let hostile: [(&str, Vec<u8>, &str); 9] = [
        ("a bomb", bomb, "payload"),
        ("all ones", with_payload(&genuine, &gzip(&vec![0xff; shape(LARGE).bytes()])), "saturated"),
        ("another minute's value", of_another(LARGE, GENERATION, SLOT.plus(1)), "slot"),
        ("another shape's", of_another(2 * LARGE, GENERATION, SLOT), "shape"),
        ("another generation's", of_another(LARGE, GENERATION + 1, SLOT), "generation"),
        ("an extended one", extended.clone(), "mac"),
        ("an extended one, signed", with_payload(&genuine, &extended[HEADER_BYTES..]), "accepted"),
        ("a padded one", padded, "length"),
        ("nothing", Vec::new(), "length"),
    ];
    let most = shape(LARGE).bytes() as u64 + DECODING_BYTES;
    let read = |bytes: &[u8]| {
        let mut reason = "";
        let allocated = allocation_counter::measure(|| {
            reason = large.decode(SLOT, VERSION, bytes).map_or_else(|error| error.reason(), |_| "accepted");
        });
        assert!(allocated.bytes_max <= most, "{reason}: {} bytes were allocated", allocated.bytes_max);
        reason
    };
    for (name, bytes, reason) in hostile {
        assert_eq!(read(&bytes), reason, "{name}");
    }
    // Signed at every length, so that the payload is cut and not the proof.
    let small = values(200);
    let genuine = small.encode(SLOT, VERSION, true, &filter(200, 50));
    for length in 0..genuine.len() {
        let mut cut = genuine[..length].to_vec();
        sign(&mut cut);
        assert!(small.decode(SLOT, VERSION, &cut).is_err(), "cut at {length}");
    }
}

fn alone(file: &std::path::Path) -> Builder {
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
    let builder = Headcount::builder().max_active_users(10).capacity(5000).window(Duration::from_secs(4)).slots(4);
    builder.secret("the key of the whole fleet").clock(clock).snapshot_file(file).refresh_queue(1)
}

/// The bytes of a snapshot: four minutes with users in them.
fn genuine_snapshot() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let (headcount, mut worker) = alone(&file).build().unwrap();
    for token in ["alice", "bob", "carol"] {
        assert!(headcount.admit(token).is_admitted());
    }
    worker.finish();
    std::fs::read(file).unwrap()
}

#[test]
fn a_snapshot_is_loaded_or_set_aside() {
    let genuine = genuine_snapshot();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let decides = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let allocated = allocation_counter::measure(|| {
            let (headcount, _worker) = alone(&file).build().unwrap();
            assert!(headcount.admit("alice").is_admitted());
        });
        allocated.bytes_max
    };
    let fresh = decides(&genuine);
    // The file twice, because a vector grows by copying, and a filter for each minute.
    let most = fresh + 2 * 6 * values(5000).most_bytes() as u64 + 6 * shape(5000).bytes() as u64 + DECODING_BYTES;
    fuzz!(|input: &[u8]| {
        let mut script = Script(input);
        let mut bytes = genuine.clone();
        for _ in 0..6 {
            if script.is_over() {
                break;
            }
            match script.u8() % 6 {
                0 => {
                    let at = script.u16() % bytes.len().max(1);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = script.u8();
                    }
                }
                1 => bytes.truncate(script.u16() % (bytes.len() + 1)),
                2 => bytes.extend_from_slice(script.run()),
                // The time and the number of minutes.
                3 if bytes.len() >= 24 => bytes[12..24].copy_from_slice(&script.take::<12>()),
                // The same minute repeatedly.
                4 if bytes.len() > 44 => {
                    let length = u32::from_le_bytes(std::array::from_fn(|byte| bytes[32 + byte])) as usize;
                    let minute = bytes[24..(36 + length).min(bytes.len() - 8)].to_vec();
                    // What is repeated already is repeated only as often as makes a long file.
                    let most = ((1 << 20) / minute.len().max(1)) as u32;
                    let times = (script.u16() as u32 % 512).min(most);
                    bytes.truncate(20);
                    bytes.extend_from_slice(&times.to_le_bytes());
                    (0..times).for_each(|_| bytes.extend_from_slice(&minute));
                    bytes.extend_from_slice(&[0; 8]);
                }
                _ if bytes.len() >= 8 => {
                    let end = bytes.len() - 8;
                    let (signed, checksum) = bytes.split_at_mut(end);
                    checksum.copy_from_slice(&keyed_hash(&key(), signed).to_le_bytes());
                }
                _ => {}
            }
        }
        let allocated = decides(&bytes);
        assert!(allocated <= most, "{allocated} bytes were allocated, of {most}");
    });
}

#[test]
fn a_token_source_is_a_text_that_parses_to_the_same_source() {
    fuzz!(|input: &[u8]| {
        let input = spelled(
            &input[..input.len().min(8)],
            &["bearer", "cookie:", "header:", ":", "a", "X-Token", " ", "\u{e9}"],
        );
        let text = String::from_utf8_lossy(&input);
        if let Ok(source) = text.parse::<TokenSource>() {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
    });
}

#[test]
fn a_token_is_found_or_refused_whatever_the_headers_are() {
    let sources = ["bearer", "cookie:session", "header:X-Access-Token"].map(|source| source.parse().unwrap());
    fuzz!(|input: &[u8]| {
        let words = [
            "\na", "\nc", "\nx", "Bearer ", "bearer", "session=", "alice", "bob", ";", "=", " ", "\t", "a, b", "Basic ",
        ];
        let input = spelled(input, &words);
        let mut headers = http::HeaderMap::new();
        for line in input.split(|&byte| byte == b'\n') {
            let (name, value) = match line.split_first() {
                Some((b'a', value)) => ("authorization", value),
                Some((b'c', value)) => ("cookie", value),
                Some((_, value)) => ("x-access-token", value),
                None => continue,
            };
            if let Ok(value) = http::HeaderValue::from_bytes(value) {
                headers.append(name, value);
            }
        }
        if let Ok(Some(token)) = TokenSource::find(&sources, OnConflict::Refuse, &headers) {
            assert!(!token.is_empty() && token.len() <= headcount::MAX_TOKEN_BYTES && token == token.trim_ascii());
        }
    });
}

const TOML: [&str; 40] = [
    "[admission]\n",
    "[window]\n",
    "[token]\n",
    "[redis]\n",
    "[server]\n",
    "[admin]\n",
    "max_active_users=",
    "resume_ratio=",
    "refill=",
    "enforcement=",
    "retry_after=",
    "missing_token=",
    "exempt_paths=",
    "length=",
    "slots=",
    "capacity=",
    "false_positive_rate=",
    "from=",
    "secret=",
    "url=",
    "namespace=",
    "sync_every=",
    "trusted_proxies=",
    "{min=\"1s\",max=\"2s\"}\n",
    "\"4s\"\n",
    "\"0s\"\n",
    "\"100ms\"\n",
    "10\n",
    "4\n",
    "100\n",
    "0\n",
    "-1\n",
    "1e-3\n",
    "nan\n",
    "[\"bearer\", \"cookie:a\"]\n",
    "[\"/a/*\"]\n",
    "\"the key of the whole fleet\"\n",
    "\"shadow\"\n",
    "\"redis://127.0.0.1:1\"\n",
    "\0WINDOW__SLOTS=",
];

#[test]
fn a_configuration_is_read_or_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headcount.toml");
    fuzz!(|input: &[u8]| {
        let input = spelled(&input[..input.len().min(400)], &TOML);
        let mut parts = input.split(|&byte| byte == 0);
        std::fs::write(&file, parts.next().unwrap_or_default()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let environment: Vec<_> = parts
            .filter_map(|variable| {
                let equals = variable.iter().position(|&byte| byte == b'=')?;
                Some((format!("HEADCOUNT__{}", text(&variable[..equals])), text(&variable[equals + 1..])))
            })
            .collect();
        match headcount::server::load(Some(&file), environment.into_iter(), vec![], |_| Ok(())) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(loaded) => {
                let config = loaded.config.clone();
                let files = config.snapshot.file.is_some()
                    || config.token.secret_file.is_some()
                    || config.admin.token_file.is_some();
                let large = config.window.capacity.or(config.admission.max_active_users).is_none_or(|most| most > 1000);
                if files || large || config.window.slots > 60 {
                    return;
                }
                let built = <Builder as From<headcount::Config>>::from(config).build();
                if let Err(headcount::BuildError::Config(error)) = built.map(drop) {
                    assert!(!loaded.locate(error).to_string().is_empty());
                }
            }
        }
    });
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

const JSON: [&str; 28] = [
    "{",
    "}",
    ",",
    "\"mode\":",
    "\"open\"",
    "\"throttling\"",
    "\"auto\"",
    "\"max_active_users\":",
    "\"for\":",
    "\"reason\":",
    "\"10m\"",
    "\"24h\"",
    "\"1ns\"",
    "\"0s\"",
    "50",
    "100",
    "101",
    "0",
    "-1",
    "1e400",
    "null",
    "\"\\u0000\"",
    "[",
    "]",
    "{\"mode\":\"open\"",
    "{\"mode\":\"auto\",\"max_active_users\":",
    "18446744073709551615",
    " ",
];

#[test]
fn an_override_is_set_or_refused_and_the_status_stays_readable() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("admin.token");
    std::fs::write(&token, "a token of sixteen bytes or more").unwrap();
    let headcount = Headcount::builder().max_active_users(10).capacity(100).admin_token_file(token).build().unwrap().0;
    let router = headcount.admin_router().unwrap().layer(MockConnectInfo(SocketAddr::from(([127, 0, 0, 1], 1))));
    let ask = |method: &str, path: &str, body: Vec<u8>| {
        let request = http::Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("authorization", "Bearer a token of sixteen bytes or more");
        let request = request.body(axum::body::Body::from(body)).unwrap();
        RUNTIME.block_on(async {
            let response = router.clone().oneshot(request).await.unwrap();
            (response.status().as_u16(), response.into_body().collect().await.unwrap().to_bytes())
        })
    };
    fuzz!(|input: &[u8]| {
        let (status, _) = ask("PUT", "/api/v1/override", spelled(&input[..input.len().min(60)], &JSON));
        assert!([200, 400, 413, 422].contains(&status), "{status}");
        let (status, body) = ask("GET", "/api/v1/status", Vec::new());
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 200);
        assert!((1..=100).contains(&body["max_active_users"].as_u64().unwrap()));
    });
}

/// A store whose every answer is what a script says. It knows the fleet's key, and keeps what it was given, to return
/// it when the script says nothing else.
struct Mad {
    script: parking_lot::Mutex<Vec<u8>>,
    kept: parking_lot::Mutex<Vec<Vec<u8>>>,
}

impl Mad {
    fn looked(&self, script: &mut Script<'_>, slots: usize, generation: u64) -> Looked {
        let may = |script: &mut Script<'_>| (script.u8() < 128).then(|| script.u64());
        // A sane clock now and then, so that the rest is not all refused.
        let time = may(script).unwrap_or(1_800_000_000_000_000);
        let since = may(script).map(Slot);
        let last_heartbeat = may(script).map(Timestamp::from_micros);
        let gap = may(script).map(|from| Gap {
            from: Timestamp::from_micros(from),
            to: Timestamp::from_micros(script.u64()),
            closed_by: "x".into(),
        });
        let override_ = script.run();
        let override_ = match serde_json::from_slice(override_) {
            Ok(override_) => Some(signed_override(&key(), "", generation, &override_)),
            Err(_) => Some(override_.to_vec()).filter(|bytes| !bytes.is_empty()),
        };
        let minutes = Self::entries(script, slots);
        let nodes = script.u64();
        let others = script.u8() % 4;
        let other = |_| OtherGeneration { generation: u64::from(script.u8() % 4), is_alive: script.u8() < 128 };
        let other_generations = (0..others).map(other).collect();
        Looked {
            time: Timestamp::from_micros(time),
            minutes,
            since,
            last_heartbeat,
            gap,
            override_,
            nodes,
            wanting: nodes.rotate_left(17),
            without_beats: nodes.is_multiple_of(2),
            named: vec![Node {
                instance_id: String::from_utf8_lossy(script.run()).into_owned(),
                name: String::from_utf8_lossy(script.run()).into_owned(),
                looked: Timestamp::from_micros(script.u64()),
            }],
            other_generations,
            has_more_generations: script.u8() % 8 == 7,
            write_refused: (script.u8() % 8 == 7).then(|| StoreError::full("OOM")),
            before: may(script).map(|at| OwnRecords {
                looked: Some(Timestamp::from_micros(at)),
                wanted: may(script).map(Timestamp::from_micros),
                listed: may(script).map(Timestamp::from_micros),
            }),
        }
    }
}

impl Mad {
    /// The script's answer; if it is empty, an earlier value.
    fn value(&self, script: &mut Script<'_>) -> Vec<u8> {
        let (said, kept) = (script.run(), self.kept.lock());
        match said {
            [] if !kept.is_empty() => kept[usize::from(script.u8()) % kept.len()].clone(),
            said => said.to_vec(),
        }
    }

    fn keep(&self, news: &Publish) {
        self.kept.lock().extend(news.minutes.iter().map(|minute| minute.value.clone()));
    }

    fn entries(script: &mut Script<'_>, slots: usize) -> Vec<Option<Entry>> {
        let many = slots + usize::from(script.u8() % 3);
        let entry = |_| {
            let version = Version(String::from_utf8_lossy(script.run()).into_owned());
            (!version.0.is_empty()).then(|| Entry { version, bytes: script.u64() as usize >> (script.u8() % 64) })
        };
        (0..many).map(entry).collect()
    }
}

impl FilterStore for Mad {
    fn name(&self) -> &'static str {
        "mad"
    }

    async fn exchange(&self, identity: &Identity, request: Request, _: Duration) -> Result<Reply, StoreError> {
        let mut bytes = self.script.lock();
        let mut script = Script(&bytes);
        if let Request::Publish(news) = &request {
            self.keep(news);
        }
        let reply = match (script.u8() % 16, request) {
            (15, _) => Err(StoreError::timeout("late")),
            (14, _) => Ok(Reply::Left),
            (_, Request::Look { slots, .. }) => {
                Ok(Reply::Looked(self.looked(&mut script, slots.len(), identity.generation)))
            }
            (_, Request::Fetch { slots } | Request::FetchBeside { slots, .. }) => Ok(Reply::Fetched(
                slots
                    .into_iter()
                    .map(|slot| Stored {
                        slot: slot.plus(u64::from(script.u8() / 128)),
                        version: Version("1".into()),
                        value: self.value(&mut script),
                    })
                    .collect(),
            )),
            (_, Request::LookBeside { slots, .. }) => Ok(Reply::LookedBeside(LookedBeside {
                minutes: Self::entries(&mut script, slots.len()),
                writers: vec![String::from_utf8_lossy(script.run()).into_owned()],
                wanting: script.u64(),
            })),
            (_, Request::Publish(news)) => Ok(Reply::Published(Published {
                written: news.minutes.iter().map(|_| script.u8() < 128).collect(),
                since: (script.u8() < 128).then(|| Slot(script.u64())),
            })),
            (_, Request::ExchangeNews { logs, seats, .. }) => Ok(Reply::News {
                line: (script.u8() < 100).then(|| LineView {
                    is_open: script.u8() < 100,
                    classes: (0..1 + script.u8() / 128)
                        .map(|_| ClassView {
                            mark: script.u64(),
                            called: script.u64(),
                            waiting: script.u64(),
                            served: script.u64(),
                            left: script.u64(),
                            points: vec![(script.u64(), script.u64())],
                        })
                        .collect(),
                }),
                seats: (script.u8() < 200).then(|| SeatReply {
                    epoch: if script.u8() < 200 { seats.epoch.max(1) } else { script.u64() },
                    is_quiet: script.u8() < 100,
                    logged: script.u64(),
                    valued: script.u64(),
                    granted: script.u64(),
                    pool: script.u64(),
                    demand: script.u64(),
                    readers: script.u64(),
                    servers: script.u64(),
                    lease_began: if script.u8() < 60 { u64::MAX } else { 0 },
                    is_behind: script.u8() < 60,
                }),
                logs: logs
                    .into_iter()
                    .map(|log| {
                        self.kept.lock().push(log.entry.clone());
                        let is_as_read = script.u8() < 128;
                        LogPart {
                            id: (script.u8() < 200).then_some(if is_as_read { log.id } else { [script.u8(); 16] }),
                            from: if is_as_read { log.read_to } else { script.u64() },
                            bytes: self.value(&mut script),
                            appended_at: (script.u8() < 128).then(|| script.u64()),
                        }
                    })
                    .collect(),
            }),
            (_, Request::Leave) => Ok(Reply::Left),
        };
        let rest = script.0.to_vec();
        *bytes = rest;
        reply
    }
}

#[test]
fn rounds_survive_whatever_the_store_says() {
    fuzz!(|input: &[u8]| {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let builder = Headcount::builder().max_active_users(10).capacity(100).window(Duration::from_secs(4)).slots(4);
        let builder = builder.secret("the key of the whole fleet").clock(Arc::clone(&clock)).seed(1);
        let (headcount, mut worker) = builder.build().unwrap();
        let mut rounds =
            headcount.sync_with(Mad { script: parking_lot::Mutex::new(input.to_vec()), kept: Default::default() });
        for second in 0..12 {
            clock.advance(Duration::from_millis(700));
            let _ = headcount.admit(format!("player-{second}"));
            RUNTIME.block_on(rounds.round());
            RUNTIME.block_on(rounds.beat());
            worker.tick();
            let status = headcount.status();
            assert!(status.ring.coverage <= 5 && (1..=100).contains(&status.max_active_users));
        }
    });
}

#[test]
fn a_refusal_has_a_form_and_a_time_whatever_is_accepted() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    assert!(headcount.admit("alice").is_admitted());
    let inner =
        service_fn(|_| async { Ok::<_, Infallible>(http::Response::new(Full::<axum::body::Bytes>::from("inside"))) });
    let service = headcount.layer().layer(inner);
    fuzz!(|input: &[u8]| {
        let input = spelled(
            input,
            &["text/html", "application/json", ",", ";", "q=", "0.5", "1", "2", "NaN", "-0", "*/*", " ", "\n", "1e9"],
        );
        let mut request = http::Request::get("/play").header("authorization", "Bearer bob");
        for value in input.split(|&byte| byte == b'\n') {
            if let Ok(value) = http::HeaderValue::from_bytes(value) {
                request = request.header("accept", value);
            }
        }
        let response = RUNTIME.block_on(service.clone().oneshot(request.body(()).unwrap())).unwrap();
        assert_eq!(response.status(), http::StatusCode::TOO_MANY_REQUESTS);
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        assert!((15..=45).contains(&header("retry-after").parse::<u64>().unwrap()));
        assert!(["application/problem+json", "text/html; charset=utf-8"].contains(&header("content-type")));
    });
}

/// Whatever a token and a key file are: no panic, and only a token signed with the key names a user.
#[test]
fn a_token_is_verified_or_refused() {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    const SECRET: &[u8] = b"thirty-two bytes or more, said RFC 7518";
    const WORDS: [&str; 30] = [
        "{",
        "}",
        "\"",
        ":",
        ",",
        "[",
        "]",
        "null",
        "\"alg\"",
        "\"HS256\"",
        "\"RS256\"",
        "\"ES256\"",
        "\"EdDSA\"",
        "\"none\"",
        "\"kid\"",
        "\"crit\"",
        "\"typ\"",
        "\"jwk\"",
        "\"sub\"",
        "\"exp\"",
        "\"nbf\"",
        "1e400",
        "-1",
        "\"alice\"",
        "\"keys\"",
        "\"kty\"",
        "\"oct\"",
        "\"k\"",
        "-----BEGIN PUBLIC KEY-----\n",
        "\n-----END PUBLIC KEY-----",
    ];
    let now = Timestamp::from_millis(1_800_000_000_000);
    let hmac = |message: &str| {
        let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
        jsonwebtoken::crypto::sign(message.as_bytes(), &key, jsonwebtoken::Algorithm::HS256).unwrap()
    };
    fuzz!(move |input: &[u8]| {
        let mut script = Script(input);
        let (how, first, second) = (script.u8(), script.run(), script.run());
        let header = match how & 3 {
            0 => spelled(first, &WORDS),
            _ => br#"{"alg":"HS256"}"#.to_vec(),
        };
        let claims = match how & 12 {
            0 => br#"{"sub":"alice"}"#.to_vec(),
            _ => spelled(second, &WORDS),
        };
        let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let message = format!("{header}.{claims}");
        let is_signed = how & 16 > 0;
        let signature = if is_signed { hmac(&message) } else { BASE64_URL_SAFE_NO_PAD.encode(script.0) };
        let token = format!("{message}.{signature}");
        match headcount::internals::verified(SECRET, &token, now) {
            Ok(user) => assert!(is_signed && !user.trim().is_empty(), "{token}"),
            Err(_) => assert!(!(is_signed && how & 15 == 1), "{token}"),
        }
        // Not even a frame, and an invalid key.
        let _ = headcount::internals::verified(SECRET, &String::from_utf8_lossy(input), now);
        if let Ok(user) = headcount::internals::verified(&spelled(input, &WORDS), &token, now) {
            assert!(!user.is_empty());
        }
    });
}
